"""Near matches for misspelt names.

    did_you_mean("clip_lo", ["clip_low", "beta"])    # "did you mean `clip_low`?"
"""

from __future__ import annotations

from collections.abc import Iterable


def near(name: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Up to `limit` of `names` that look like `name`, best first; case and `-`/`_` do not count."""
    from difflib import SequenceMatcher

    folded = _fold(name)
    scores = [(SequenceMatcher(None, folded, _fold(other)).ratio(), other) for other in sorted(set(names))]
    best = max((score for score, _ in scores), default=0.0)
    # The second best is worth naming only when it is about as good.
    close = [(-score, other) for score, other in scores if score >= max(0.6, best - 0.1)]
    return [other for _, other in sorted(close)[:limit]]


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """ "did you mean `a` or `b`?", or None when nothing is near; goes into an error's `fix`."""
    matches = near(name, names)
    if not matches:
        return None
    return "did you mean " + " or ".join(f"`{match}`" for match in matches) + "?"


def listing(names: Iterable[str], nothing: str = "none") -> str:
    """Names in backquotes, sorted, joined by commas."""
    return ", ".join(f"`{name}`" for name in sorted(set(names))) or nothing
