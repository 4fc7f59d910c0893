"""What an attrs class says about its fields: real types, aliases, bounds, help. Read-only, torch-free.

    for row in describe(TrainingConfig):
        print(row.name, row.type, row.default, row.bounds, row.unit, row.help)
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import attrs


def field_types(cls: type) -> dict[str, Any]:
    """Types of an attrs class's fields by attribute name, string annotations evaluated.

    A type that exists only for the type checker (an import under `TYPE_CHECKING`, a class local to a function) cannot
    be evaluated and is `Any`: such a field is not checked.
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        module = vars(sys.modules.get(base.__module__, types.ModuleType(base.__module__)))
        for name, annotation in base.__dict__.get("__annotations__", {}).items():
            found[name] = _evaluate(annotation, module, dict(vars(base)))
    return {a.name: found.get(a.name, a.type if a.type is not None else Any) for a in attrs.fields(cls)}


def _evaluate(annotation: Any, module: dict[str, Any], local: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, module, local)
    except (NameError, AttributeError, TypeError):
        return Any


def settable(cls: type) -> dict[str, Any]:
    """The attrs fields a configuration may set, by the name it sets them with (`_x` is set as `x`)."""
    return {a.alias: a for a in attrs.fields(cls) if a.init}


def holds_components(tp: Any) -> bool:
    """Whether a field's type is `Use`, or a list, mapping or union with it."""
    if isinstance(tp, type) and tp.__module__ == "forge_host.types" and tp.__name__ == "Use":
        return True
    return any(holds_components(inner) for inner in get_args(tp))


def type_name(tp: Any) -> str:
    """A type in a table or message: `int`, `float or null`, `list[str]`, `[component, float]`, `'a' or 'b'`."""
    if tp is Any or tp is object or isinstance(tp, typing.TypeVar):
        return "anything"
    if tp is None or tp is type(None):
        return "null"
    origin, args = get_origin(tp), get_args(tp)
    if origin is typing.Annotated:
        return type_name(args[0])
    if origin is Literal:
        return " or ".join(repr(value) for value in args)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(arg) for arg in args)
    base = origin or tp
    if not isinstance(base, type):
        return str(tp)
    if issubclass(base, tuple) and args and args[-1] is not Ellipsis:
        return f"[{', '.join(type_name(arg) for arg in args)}]"
    if issubclass(base, (list, tuple, set, frozenset)) or base.__name__ in ("Sequence", "Iterable", "Collection"):
        return f"list[{type_name(args[0])}]" if args else "list"
    if issubclass(base, Mapping):
        return f"mapping[{type_name(args[0])}, {type_name(args[1])}]" if args else "mapping"
    if holds_components(base):
        return "component"
    return base.__name__


@attrs.frozen
class FieldRow:
    """One field for a table: every part is text; `default` is "required" when there is none."""

    name: str
    type: str
    default: str
    bounds: str
    unit: str
    help: str


def describe(cls: type) -> list[FieldRow]:
    """The fields of an attrs class that a configuration may set, in order."""
    hints = field_types(cls)
    return [
        FieldRow(
            name,
            type_name(hints[a.name]),
            default_text(a),
            bounds(a.validator),
            a.metadata.get("unit") or "",
            a.metadata.get("help") or "",
        )
        for name, a in settable(cls).items()
    ]


def default_text(attribute: Any) -> str:
    if attribute.default is attrs.NOTHING:
        return "required"
    if isinstance(attribute.default, attrs.Factory):  # type: ignore[arg-type]
        return "computed" if attribute.default.takes_self else _plain(attribute.default.factory())
    return _plain(attribute.default)


def _plain(value: Any) -> str:
    names = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return names[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    return value if isinstance(value, str) and value else repr(value)


def bounds(validator: Any) -> str:
    """ ">= 1, <= 8" or "one of: a, b" from attrs' own validators; "" for others (their message says it)."""
    if validator is None:
        return ""
    parts = getattr(validator, "_validators", None)
    if parts:
        return ", ".join(text for text in map(bounds, parts) if text)
    inner = getattr(validator, "validator", None)
    if inner is not None:
        return bounds(inner)
    if hasattr(validator, "compare_op") and hasattr(validator, "bound"):
        return f"{validator.compare_op} {validator.bound}"
    if hasattr(validator, "options"):
        return "one of: " + ", ".join(map(str, validator.options))
    if hasattr(validator, "max_length"):
        return f"at most {validator.max_length} long"
    if hasattr(validator, "min_length"):
        return f"at least {validator.min_length} long"
    return ""
