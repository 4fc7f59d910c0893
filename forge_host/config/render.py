"""A resolved run as text: `config.resolved.yaml`, and the table of `config explain`.

print(to_yaml(resolved))
for row in explain(resolved, "training"):
    print(row.key, row.value, row.where)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.config.files import dump
from forge_host.config.plan import Part
from forge_host.config.schema import RunConfig
from forge_host.config.sections import to_plain
from forge_host.config.source import DEFAULT
from forge_host.errors import UsageError
from forge_host.plugins.suggest import did_you_mean
from forge_host.types import Use

if TYPE_CHECKING:
    from forge_host.config.resolving import Resolved

_ROLES = ("generator", "trainer", "transport", "launcher")
_PARTS = ("loss", "advantage", "sampler")
_SETTINGS = ("aggregation", "kl", "correction", "sampling")
_OPTIONAL = ("plugins", "no_plugins", "plugin_files")
#: Written where they differ from nothing, or as part of another section.
_WRITTEN = ("environment", *_PARTS, *_SETTINGS, *_OPTIONAL, "algorithm_config")


def to_yaml(resolved: Resolved) -> str:
    """Every key of the configuration with its value; the algorithm's parts only where they were replaced."""
    return dump(_document(resolved, everything=False))


def _use(use: Use) -> dict[str, Any]:
    return {"use": use.ref, **to_plain(use.config)}


def _part(part: Part) -> dict[str, Any]:
    return {"use": part.ref, **to_plain(part.use.config)}


def _document(resolved: Resolved, everything: bool) -> dict[str, Any]:
    config, plan = resolved.config, resolved.plan
    document: dict[str, Any] = {"model": config.model}
    section = to_plain(plan.algorithm.use.config)
    if plan.algorithm.plugin:
        document |= {"algorithm": plan.algorithm.ref, plan.algorithm.name: section}
    else:
        document["algorithm"] = {"use": plan.algorithm.ref, **section}
    for key in _PARTS:
        if everything or getattr(config, key) is not None:
            document[key] = _part(getattr(plan, key))
    if everything and plan.shaping:
        document["shaping"] = [_part(part) for part in plan.shaping]
    for key in _SETTINGS:
        if everything or getattr(config, key):
            document[key] = to_plain(getattr(plan if everything else config, key))
    if everything or plan.environment:
        document["environment"] = _part(plan.environment) if plan.environment else None
    general = to_plain(attrs.asdict(config.dataset, filter=attrs.filters.exclude("extra")))
    document["dataset"] = {**general, **to_plain(config.dataset.extra)}
    document["rewards"] = [{**_use(use), "weight": weight} for use, weight in config.rewards]
    for key in _ROLES:
        document[key] = _part(getattr(plan, key))
    document["trackers"] = [_use(use) for use in config.trackers]
    for field in attrs.fields(RunConfig):
        if field.name not in document and field.name not in _WRITTEN:
            document[field.name] = to_plain(getattr(config, field.name))
    del document["training"]["off_by_n"]  # it is max_policy_age by now
    for key in _OPTIONAL:
        if everything or getattr(config, key):
            document[key] = to_plain(getattr(config, key))
    if config.plugins == ():
        document["plugins"] = []
    return document


@attrs.frozen
class Row:
    """One key of `config explain`; `overrode` holds (value, where) of what lost against it, strongest first."""

    key: str
    value: Any
    where: str
    overrode: tuple[tuple[Any, str], ...] = ()


def explain(resolved: Resolved, key: str | None = None) -> list[Row]:
    """Every key (or those at and below `key`) with its value and where that came from.

    Raises:
        UsageError: `key` is none of the configuration.
    """
    values = _flat(_document(resolved, everything=True))
    rows = []
    for name, value in values.items():
        source = resolved.provenance.get(name, DEFAULT)
        rows.append(Row(name, value, source.where, source.overrode))
    if key is None:
        return rows
    chosen = [row for row in rows if row.key == key or row.key.startswith(key + ".")]
    if not chosen:
        known = {part for name in values for part in (name, name.rpartition(".")[0])}
        raise UsageError(
            f"config key `{key}` is unknown", fix=did_you_mean(key, known) or "run `forge-host config explain CONFIG`"
        )
    return chosen


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    children: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        children = value
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        children = {str(index): item for index, item in enumerate(value)}
    if not children:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for name, child in children.items():
        flat |= _flat(child, f"{prefix}.{name}" if prefix else name)
    return flat
