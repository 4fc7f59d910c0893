"""Configuration: read, merge, validate, explain. Torch-free; names are imported when first used.

    from forge_host.config import load_plugins, resolve

    host = load_plugins(["quickstart"])
    resolved = resolve("quickstart", overrides=["training.max_steps=5"], host=host)

In reading order: `files` and `source` (YAML with lines), `canonical`, `overrides`, `merge` (layers), `assemble`,
`choose` and `sections` (to objects), `plan`, `rules` (checks), `resolving` (all of it), `render` and `jsonschema`
(out again).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_host.config.model import resolve_model
    from forge_host.config.plan import Part, Plan
    from forge_host.config.render import explain
    from forge_host.config.resolving import Resolved, resolve
    from forge_host.config.rules import checks
    from forge_host.config.schema import RunConfig
    from forge_host.config.select import load_plugins
    from forge_host.config.source import Source

_HOMES = {
    "Part": "plan", "Plan": "plan", "Resolved": "resolving", "RunConfig": "schema", "Source": "source",
    "checks": "rules", "explain": "render", "load_plugins": "select", "resolve": "resolving", "resolve_model": "model",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forge_host.config' has no attribute {name!r}")
    return getattr(import_module(f"forge_host.config.{_HOMES[name]}"), name)


__all__ = [
    "Part", "Plan", "Resolved", "RunConfig", "Source", "checks", "explain", "load_plugins", "resolve", "resolve_model",
]  # fmt: skip
