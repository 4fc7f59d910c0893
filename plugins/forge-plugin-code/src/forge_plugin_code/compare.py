"""Whether what a program printed is what a test expects; done in the host's process, on text.

same_output("3.0000001 \\n", "3", "tokens", 1e-6)      # True
"""

from __future__ import annotations

import math

COMPARISONS = ("lines", "tokens", "exact")


def same_output(found: str, expected: str, how: str, tolerance: float) -> bool:
    """`exact`: every character. `lines`: blanks at line ends and empty lines at the end do not count.

    `tokens`: words separated by blanks; two that differ but are numbers may differ by `tolerance`, relative above 1.
    """
    if how == "exact":
        return found == expected
    if how == "lines":
        return _lines(found) == _lines(expected)
    a, b = found.split(), expected.split()
    return len(a) == len(b) and all(x == y or _close(x, y, tolerance) for x, y in zip(a, b, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _close(a: str, b: str, tolerance: float) -> bool:
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    return math.isfinite(x) and abs(x - y) <= tolerance * max(1.0, abs(y))
