"""Plugins: discovery, loading, registry, lock. Imports no torch and no monarch; `discover` imports no plugin either.

    from forge_host.plugins import PluginHost, discover

    discover()                                           # level 0: metadata of what is installed
    host = PluginHost.load(("dapo", "math"))             # level 1: declaration modules
    host.build("reward", Use("math"))                    # level 2: one component's code

Files: `discovery` (level 0), `loading` (level 1), `targets` and `building` (level 2), `references` (names to
components), `host` (all of it together), `hooks` (calling observers), `calling` (call by name), `structure`, `coerce`
and `fields` (configuration values), `lock`, `doctor` and `validate`, `deprecation`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_host.plugins.calling import CallByName
    from forge_host.plugins.coerce import FieldError
    from forge_host.plugins.deprecation import ForgeRemovedIn2Warning
    from forge_host.plugins.discovery import discover
    from forge_host.plugins.fields import describe, field_types
    from forge_host.plugins.hooks import Hooks
    from forge_host.plugins.host import PluginHost
    from forge_host.plugins.lock import PluginLock
    from forge_host.plugins.records import Entry, Origin, PluginRecord
    from forge_host.plugins.suggest import did_you_mean, near
    from forge_host.plugins.targets import import_file, resolve

# Imported on first use: `plugins list` needs `discover` and nothing else.
_HOMES = {
    "CallByName": "calling",
    "Entry": "records",
    "FieldError": "coerce",
    "ForgeRemovedIn2Warning": "deprecation",
    "Hooks": "hooks",
    "Origin": "records",
    "PluginHost": "host",
    "PluginLock": "lock",
    "PluginRecord": "records",
    "describe": "fields",
    "did_you_mean": "suggest",
    "discover": "discovery",
    "field_types": "fields",
    "import_file": "targets",
    "near": "suggest",
    "resolve": "targets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forge_host.plugins' has no attribute {name!r}")
    return getattr(import_module(f"forge_host.plugins.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


__all__ = [
    "CallByName", "Entry", "FieldError", "ForgeRemovedIn2Warning", "Hooks", "Origin", "PluginHost", "PluginLock",
    "PluginRecord", "describe", "did_you_mean", "discover", "field_types", "import_file", "near", "resolve",
]  # fmt: skip
