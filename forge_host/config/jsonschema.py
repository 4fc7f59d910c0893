"""The JSON schema (draft 2020-12) of a configuration, made from the attrs classes that validate it.

    json.dumps(config_schema(PluginHost.load(strict=False)), indent=2)

Sections that choose a component are open, since their other keys are the component's; those stand under
`$defs/components`, with help and units, for every component whose configuration can be read without its own packages.
"""

from __future__ import annotations

import collections.abc
import operator
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import attrs

from forge_host.config import schema
from forge_host.config.canonical import ROLES, SELECTORS
from forge_host.config.sections import NotPlain, to_plain
from forge_host.errors import ForgeError
from forge_host.plugins.fields import field_types, settable
from forge_host.types import KINDS, KL, Aggregation, Correction, SamplingParams, Use

if TYPE_CHECKING:
    from forge_host.plugins import Entry, PluginHost

Schema = dict[str, Any]
_SCALARS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_BOUNDS = {
    operator.ge: "minimum",
    operator.gt: "exclusiveMinimum",
    operator.le: "maximum",
    operator.lt: "exclusiveMaximum",
}
_SECTIONS = {"aggregation": Aggregation, "kl": KL, "correction": Correction, "sampling": SamplingParams}
_USE: Schema = {
    "oneOf": [
        {"type": "string", "description": "component reference"},
        {"type": "object", "properties": {"use": {"type": "string", "description": "component reference"}}},
    ]
}


def config_schema(host: PluginHost) -> Schema:
    """The schema of the whole file; algorithms' sections and `$defs` cover the components that `host` has loaded."""
    hints = field_types(schema.RunConfig)
    properties: dict[str, Schema] = {}
    for name, field in settable(schema.RunConfig).items():
        if name != "algorithm_config":
            properties[name] = {**_top(name, hints[name]), "description": field.metadata["help"]}
    for role in ROLES:
        properties.setdefault(role, {**class_schema(schema.ServiceConfig), "description": f"short for services.{role}"})
    definitions = _definitions(host)
    for entry in host.entries("algorithm"):
        reference = {"$ref": f"#/$defs/components/algorithm/{entry.ref.replace('/', '~1')}"}
        if entry.ref in definitions.get("algorithm", {}):
            properties.setdefault(entry.spec.name, reference)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "forge-host configuration",
        "type": "object",
        "properties": properties,
        "required": ["model"],
        "$defs": {"components": definitions},
    }


def class_schema(cls: type, closed: bool = True) -> Schema:
    """The schema of one attrs class: types, defaults, bounds, help and units of its fields."""
    hints = field_types(cls)
    properties: dict[str, Schema] = {}
    required = []
    for name, field in settable(cls).items():
        if name == "extra" and not closed:
            continue
        entry = {**type_schema(hints[field.name]), **_validated(field.validator)}
        if field.metadata.get("help"):
            unit = f" ({field.metadata['unit']})" if field.metadata.get("unit") else ""
            entry["description"] = field.metadata["help"] + unit
        if field.default is attrs.NOTHING:
            required.append(name)
        else:
            entry.update(_default(field.default))
        properties[name] = entry
    result: Schema = {"type": "object", "properties": properties, "additionalProperties": not closed}
    return {**result, "required": required} if required else result


def type_schema(tp: Any) -> Schema:
    """The schema of a type annotation; {} (anything) for what JSON has no word for."""
    origin, args = get_origin(tp), get_args(tp)
    if tp is type(None):
        return {"type": "null"}
    if tp in _SCALARS:
        return {"type": _SCALARS[tp]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(arg) for arg in args]}
    base = origin or tp
    if not isinstance(base, type) or base is object:
        return {}
    if base is Use:
        return _USE
    if attrs.has(base):
        return class_schema(base)
    if issubclass(base, Mapping):
        return {"type": "object", **({"additionalProperties": type_schema(args[1])} if len(args) == 2 else {})}
    if issubclass(base, (list, tuple, set, frozenset, collections.abc.Sequence)):
        return {"type": "array", **({"items": type_schema(args[0])} if args else {})}
    return {}


def _top(name: str, hint: Any) -> Schema:
    if name == "dataset":
        return _or_string(class_schema(schema.DatasetConfig, closed=False))
    if name == "reward":
        service = class_schema(schema.ServiceConfig)["properties"]
        section = class_schema(schema.RewardConfig)
        return {**section, "properties": {**section["properties"], **service}}
    if name == "services":
        service = class_schema(schema.ServiceConfig)
        return {"type": "object", "properties": dict.fromkeys(ROLES, service), "additionalProperties": False}
    if name in _SECTIONS:
        section = class_schema(_SECTIONS[name])
        return _or_string(section) if "mode" in section["properties"] else section
    if name in SELECTORS:
        return _USE
    if name in ("rewards", "trackers"):
        return {
            "oneOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": ["string", "object"]}},
                {"type": "object"},
            ]
        }
    return type_schema(hint)


def _or_string(section: Schema) -> Schema:
    return {"oneOf": [{"type": "string"}, section]}


def _validated(validator: Any) -> Schema:
    """Bounds and choices from attrs' own validators."""
    if validator is None:
        return {}
    found: Schema = {}
    for inner in getattr(validator, "_validators", ()):
        found |= _validated(inner)
    inner = getattr(validator, "validator", None)
    if inner is not None:
        return _validated(inner)
    bound = _BOUNDS.get(getattr(validator, "compare_func", None))  # type: ignore[arg-type]
    if bound:
        found[bound] = validator.bound
    options = getattr(validator, "options", None)
    if isinstance(options, (tuple, list, set, frozenset)):
        found["enum"] = list(options)
    return found


def _default(default: Any) -> Schema:
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        if default.takes_self:
            return {}
        default = default.factory()
    try:
        return {"default": to_plain(default)}
    except NotPlain:
        return {}


def _definitions(host: PluginHost) -> dict[str, dict[str, Schema]]:
    definitions: dict[str, dict[str, Schema]] = {}
    for kind in KINDS:
        for entry in host.entries(kind):
            fields = _component(host, entry)
            if fields is not None:
                definitions.setdefault(kind, {})[entry.ref] = {**fields, "description": entry.spec.summary}
    return definitions


def _component(host: PluginHost, entry: Entry) -> Schema | None:
    """A component's fields; None without an attrs class, or when its packages are not installed."""
    try:
        cls = host.config_class(entry)
    except ForgeError:
        return None
    return class_schema(cls) if cls is not None else None
