"""Seeds of draws that do not depend on the order in which things happen.

    draw_seed(training.seed, "12:prompt-7", version=3)
"""

from __future__ import annotations

import hashlib


def draw_seed(base: int, group_id: str, version: int) -> int:
    """The seed of a group's first response (response i has it plus i): of the run's seed, the prompt and its place in
    the data, and the weights' version. 48 bits."""
    digest = hashlib.blake2b(f"{base}:{group_id}:{version}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")
