"""Warnings for plugin authors about what the next major host API removes.

    warnings.warn(removed_in_2("hook `forge_old`", since="1.2", use="`forge_new`"), stacklevel=2)
    # hook `forge_old` is deprecated since API 1.2 and goes away in 2.0; use `forge_new`

One class for each removal, as pytest does, so that `-W error::forge_host.plugins.deprecation.ForgeRemovedIn2Warning`
finds everything that must change before moving on.
"""

from __future__ import annotations


class ForgeDeprecationWarning(FutureWarning):
    """Base of the deprecations; a FutureWarning, since Python hides DeprecationWarnings of installed packages."""


class ForgeRemovedIn2Warning(ForgeDeprecationWarning):
    """Works in every host of API 1 and is gone in API 2."""


def removed_in_2(what: str, *, since: str, use: str) -> ForgeRemovedIn2Warning:
    """The warning with its fixed wording: what, since when, gone when, what instead."""
    return ForgeRemovedIn2Warning(f"{what} is deprecated since API {since} and goes away in 2.0; use {use}")
