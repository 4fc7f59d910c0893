"""The first-party plugins that are installed here, which the references are about.

first_party().entries("loss")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

from forge_host.plugins import Entry, PluginHost
from forge_host.plugins.discovery import discover
from forge_host.types import KINDS


def is_first_party(distribution: str) -> bool:
    """By name: `forge-host`, `forge-plugin-...` and the examples under `contrib/`."""
    return distribution.startswith("forge-") or not distribution


@cache
def first_party() -> PluginHost:
    """A host with the built-in and first-party plugins only; a broken one is an error."""
    names = [record.name for record in discover() if is_first_party(record.origin.distribution)]
    before = os.environ.pop("FORGE_HOST_PLUGIN_AUTOLOAD", None)
    try:
        return PluginHost.load(names, strict=True)
    finally:
        if before is not None:
            os.environ["FORGE_HOST_PLUGIN_AUTOLOAD"] = before


def entries() -> Iterator[Entry]:
    """Every first-party component, kind by kind."""
    host = first_party()
    for kind in KINDS:
        yield from host.entries(kind)
