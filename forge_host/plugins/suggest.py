"""Near matches for misspelt names.

    did_you_mean("clip_lo", ["clip_low", "beta"])    # "did you mean `clip_low`?"
"""

from __future__ import annotations

from collections.abc import Iterable


def near(name: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Up to `limit` of `names` that look like `name`, best first; case and `-`/`_` do not count."""
    from difflib import get_close_matches

    folded: dict[str, str] = {}
    for candidate in sorted(set(names)):
        folded.setdefault(candidate.lower().replace("_", "-"), candidate)
    close = get_close_matches(name.lower().replace("_", "-"), folded, n=limit, cutoff=0.6)
    return [folded[match] for match in close]


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """ "did you mean `a` or `b`?", or None when nothing is near; goes into an error's `fix`."""
    matches = near(name, names)
    if not matches:
        return None
    return "did you mean " + " or ".join(f"`{match}`" for match in matches) + "?"


def listing(names: Iterable[str], nothing: str = "none") -> str:
    """Names in backquotes, sorted, joined by commas."""
    return ", ".join(f"`{name}`" for name in sorted(set(names))) or nothing
