"""Train and held-out sides by hash: no list to keep, and a duplicate question falls on the side of its twin.

held_out("What is 2 + 2?", 0.1)     # the same answer in every process, run and release
"""

from __future__ import annotations

import hashlib

SPLITS = ("train", "test")


def held_out(text: str, fraction: float) -> bool:
    """True if `text` belongs to the held-out `fraction` (0 to 1) of all texts."""
    if fraction <= 0:
        return False
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
