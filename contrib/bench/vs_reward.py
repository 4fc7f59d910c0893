"""The reward of `vs_trl.py`'s timing runs: a number in [0, 1) that depends on the text alone, so that random weights
get different rewards too. Both sides use it.

    rewards: [contrib/bench/vs_reward.py:text_hash]
"""

from __future__ import annotations

import zlib


def text_hash(response: str) -> float:
    """The response's CRC-32 as a fraction."""
    return zlib.crc32(response.encode()) / 2**32
