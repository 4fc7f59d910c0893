"""Plain data (from YAML, JSON or the command line) into an attrs class, strictly, with one clear sentence on error.

    structure(DapoConfig, {"clip_lo": 0.2}, "algorithm `dapo/dapo`")
    # FieldError (a UsageError): algorithm `dapo/dapo`: key `clip_lo` is unknown; did you mean `clip_low`?

Unknown keys, missing keys and wrong types are errors; attrs' own validators run, their messages made readable.
Used for the sections of `RunConfig` and for every component's fields. Rules for values: `forge_host.plugins.coerce`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from forge_host.plugins.coerce import FieldError, PathTo, coerce, dotted, show
from forge_host.plugins.fields import field_types, settable
from forge_host.plugins.suggest import did_you_mean, listing

T = TypeVar("T")

_ATTRS_MESSAGE = re.compile(r"'(?P<field>\w+)' must (?P<rest>.*): (?P<got>.*)\Z", re.DOTALL)
_IN_MESSAGE = re.compile(r"'(?P<field>\w+)' must be in ")


def structure(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """An instance of the attrs class `cls` with the values of `mapping`.

    Args:
        mapping: field names to plain values; None (an empty YAML section) counts as empty.
        where: what the values belong to, for messages: "training", "loss `dapo/dapo`", "c.yaml".

    Raises:
        FieldError: (a `UsageError`) with `path` to the offending key.
    """
    try:
        if mapping is not None and not isinstance(mapping, Mapping):
            raise FieldError(f"expected keys with values, got {show(mapping)}")
        instance: T = build_attrs(cls, mapping or {}, ())
    except FieldError as error:
        # `where` belongs to the outermost call only; nested ones know the path instead.
        raise FieldError(error.message, path=error.path, where=where, fix=error.fix) from error.__cause__
    return instance


def build_attrs(cls: type, mapping: Mapping[str, Any], path: PathTo) -> Any:
    """`structure` below `path`; for this package's own use."""
    fields, hints = settable(cls), field_types(cls)
    check_keys(mapping, list(fields), path)
    values = {
        key: _field(value, fields[key], hints[fields[key].name], (*path, key)) for key, value in mapping.items()
    }
    for name, attribute in fields.items():
        if attribute.default is attrs.NOTHING and name not in values:
            raise FieldError(f"key `{dotted((*path, name))}` is required", path=(*path, name), fix=_what(attribute))
    try:
        return cls(**values)
    except FieldError:
        raise
    except (ValueError, TypeError) as error:
        raise _readable(error, path, fields) from error


def check_keys(mapping: Mapping[str, Any], known: list[str], path: PathTo) -> None:
    """Raises `FieldError` for the first key that is not `known`."""
    for key in mapping:
        if key not in known:
            fix = did_you_mean(str(key), known) or f"known: {listing(known, 'there are no keys')}"
            raise FieldError(f"key `{dotted((*path, str(key)))}` is unknown", path=(*path, str(key)), fix=fix)


def use_from(value: Any, path: PathTo) -> Any:
    """A component chosen inside a component: "name", or a mapping with `use` and the component's fields beside it."""
    from forge_host.types import Use

    if isinstance(value, str):
        return Use(value)
    if isinstance(value, Mapping) and isinstance(value.get("use"), str):
        return Use(value["use"], {key: item for key, item in value.items() if key != "use"})
    raise FieldError(
        f"`{dotted(path)}` must be a component's name, or keys with `use`, got {show(value)}", path=path
    )


def _what(attribute: Any) -> str | None:
    help_text = attribute.metadata.get("help")
    return f"it is: {help_text}" if help_text else None


def _field(value: Any, attribute: Any, hint: Any, path: PathTo) -> Any:
    converter = attribute.converter
    converter = getattr(converter, "converter", converter)  # unwraps attrs.Converter
    if converter is None or isinstance(converter, type):
        # With `converter=tuple` the annotation says more than the converter, which would split text into letters.
        return coerce(value, hint, path)
    accepted = _first_annotation(converter)
    return value if accepted is None else coerce(value, accepted, path)


def _first_annotation(function: Any) -> Any:
    """The evaluated annotation of a converter's first parameter, None when it has none."""
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except (ValueError, TypeError, NameError):
        return None
    first = parameters[0].annotation if parameters else inspect.Parameter.empty
    return None if first is inspect.Parameter.empty else first


def _readable(error: Exception, path: PathTo, fields: Mapping[str, Any]) -> FieldError:
    """attrs' validator messages as one sentence; a class's own message stays as it is."""
    text = str(error.args[0]) if error.args else type(error).__name__
    by_attribute = {attribute.name: alias for alias, attribute in fields.items()}
    attribute = next((arg for arg in error.args[1:] if isinstance(arg, attrs.Attribute)), None)
    if attribute is not None:
        name = by_attribute.get(attribute.name, attribute.name)
        target, value = (*path, name), error.args[-1]
        if _IN_MESSAGE.match(text):
            options = list(error.args[2])
            fix = did_you_mean(value, [o for o in options if isinstance(o, str)]) if isinstance(value, str) else None
            listed = ", ".join(show(option) for option in options)
            return FieldError(f"`{dotted(target)}` must be one of {listed}, got {show(value)}", path=target, fix=fix)
        wanted = error.args[2]
        kind = wanted.__name__ if isinstance(wanted, type) else str(wanted)
        return FieldError(f"`{dotted(target)}` must be {kind}, got {show(value)}", path=target)
    match = _ATTRS_MESSAGE.match(text)
    if match and match["field"] in by_attribute:
        target = (*path, by_attribute[match["field"]])
        return FieldError(f"`{dotted(target)}` must {match['rest']}, got {match['got']}", path=target)
    prefix = f"`{dotted(path)}`: " if path else ""
    return FieldError(f"{prefix}{text.rstrip('.')}", path=path)
