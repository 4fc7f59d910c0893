"""One plain value against one type annotation: the strict rules of configuration values.

    coerce("1e-6", float, ("learning_rate",))     # 1e-06: YAML reads 1e-6 as text
    coerce(True, int, ("n",))                     # FieldError: `n` must be int, got true

An int widens to float; nothing else is converted between numbers, text and truth values. Lists become the annotated
tuple, list or set; mappings become nested attrs classes.
"""

from __future__ import annotations

import collections.abc
import enum
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from forge_host.errors import UsageError
from forge_host.plugins.fields import type_name
from forge_host.plugins.suggest import did_you_mean

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
_ABSTRACT = (collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SEQUENCES = (list, tuple, set, frozenset, *_ABSTRACT)

PathTo = tuple[str, ...]


class FieldError(UsageError):
    """A value that a field refuses. `path` leads to it from the section's start: ("rewards", "0", "weight")."""

    path: PathTo = ()

    def __init__(
        self, message: str, *, path: PathTo = (), where: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.path = path


def dotted(path: PathTo) -> str:
    """`rewards[0].weight` for messages."""
    text = ""
    for part in path:
        text += f"[{part}]" if part.isdigit() else f".{part}" if text else part
    return text


def show(value: Any) -> str:
    """A value as a user wrote it, shortened: `true`, `null`, `'text'`, `[1, 2]`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(dict(value)) if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def coerce(value: Any, tp: Any, path: PathTo) -> Any:
    """`value` as `tp`; raises `FieldError` naming the field, what it expects and what it got."""
    if tp is Any or tp is object or isinstance(tp, (typing.TypeVar, typing.ForwardRef, str)):
        return value
    if tp is None or tp is type(None):
        return None if value is None else _refuse(value, tp, path)
    origin, args = get_origin(tp), get_args(tp)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return coerce(value, args[0], path)
    if origin is Literal:
        return _literal(value, args, path)
    if origin in (Union, types.UnionType):
        return _union(value, args, tp, path)
    base = origin or tp
    if base is collections.abc.Callable:
        return value if callable(value) else _refuse(value, tp, path)
    if base in _SCALARS:
        return _SCALARS[base](value, path)
    if base in _SEQUENCES:
        return _sequence(value, base, args, tp, path)
    if not isinstance(base, type):
        return value
    if issubclass(base, Mapping):
        return _mapping(value, args, tp, path)
    if isinstance(value, base):
        return value
    if attrs.has(base):
        return _section(value, base, path)
    if issubclass(base, enum.Enum):
        return _enum(value, base, path)
    return _refuse(value, tp, path)


def _refuse(value: Any, tp: Any, path: PathTo, fix: str | None = None) -> Any:
    raise FieldError(f"`{dotted(path)}` must be {type_name(tp)}, got {show(value)}", path=path, fix=fix)


def _bool(value: Any, path: PathTo) -> Any:
    return value if isinstance(value, bool) else _refuse(value, bool, path)


def _int(value: Any, path: PathTo) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else _refuse(value, int, path)


def _float(value: Any, path: PathTo) -> Any:
    # PyYAML follows YAML 1.1, where `1e-6` without a dot is text.
    text = isinstance(value, str) and _NUMBER.match(value)
    if not text and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return _refuse(value, float, path)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):  # infinity passes every lower bound, and nothing computes with nan
        raise FieldError(f"`{dotted(path)}` must be a finite number, got {show(value)}", path=path)
    return number


def _str(value: Any, path: PathTo) -> Any:
    if isinstance(value, str):
        return value
    quotable = isinstance(value, (int, float, bool))
    return _refuse(value, str, path, f"put quotes around it: \"{show(value)}\"" if quotable else None)


def _path(value: Any, path: PathTo) -> Any:
    return Path(value) if isinstance(value, (str, Path)) else _refuse(value, str, path)


_SCALARS: dict[Any, Callable[[Any, PathTo], Any]] = {bool: _bool, int: _int, float: _float, str: _str, Path: _path}


def _literal(value: Any, options: tuple[Any, ...], path: PathTo) -> Any:
    for option in options:
        if type(option) is type(value) and option == value:
            return option
    listed = ", ".join(show(option) for option in options)
    fix = did_you_mean(value, [o for o in options if isinstance(o, str)]) if isinstance(value, str) else None
    raise FieldError(f"`{dotted(path)}` must be one of {listed}, got {show(value)}", path=path, fix=fix)


def _union(value: Any, options: tuple[Any, ...], tp: Any, path: PathTo) -> Any:
    if value is None and type(None) in options:
        return None
    # A value that already is one of the types stays as it is: `int | float` keeps 3, `float | str` keeps "1e-6".
    for option in options:
        if type(value) is option:
            return _float(value, path) if option is float else value
    failures: list[FieldError] = []
    for option in options:
        if option is not type(None):
            try:
                return coerce(value, option, path)
            except FieldError as error:
                failures.append(error)
    # An error inside the value, or one with its own words, says more than the list of types.
    plain = f"`{dotted(path)}` must be"
    for failure, option in zip(failures, [o for o in options if o is not type(None)], strict=True):
        own_words = not failure.message.startswith(f"{plain} {type_name(option)}, got")
        if len(failure.path) > len(path) or (own_words and len(failures) == 1):
            raise failure
    fix = failures[0].fix if len(failures) == 1 else None
    raise FieldError(f"{plain} {type_name(tp)}, got {show(value)}", path=path, fix=fix)


def _sequence(value: Any, base: Any, args: tuple[Any, ...], tp: Any, path: PathTo) -> Any:
    if not isinstance(value, (list, tuple, set, frozenset)):
        example = f"write a list: [{value}]" if isinstance(value, (str, int, float)) else None
        _refuse(value, tp, path, example)
    items = list(value)
    fixed = base is tuple and bool(args) and args[-1] is not Ellipsis
    if fixed and len(items) != len(args):
        _refuse(value, tp, path, f"give {len(args)} values")
    each = list(args) if fixed else [args[0] if args else Any] * len(items)
    done = [coerce(item, tp, (*path, str(i))) for i, (item, tp) in enumerate(zip(items, each, strict=True))]
    return base(done) if base in (list, set, frozenset) else tuple(done)


def _mapping(value: Any, args: tuple[Any, ...], tp: Any, path: PathTo) -> Any:
    if not isinstance(value, Mapping):
        _refuse(value, tp, path)
    key_type, value_type = args if len(args) == 2 else (Any, Any)
    return {
        coerce(key, key_type, (*path, str(key))): coerce(item, value_type, (*path, str(key)))
        for key, item in value.items()
    }


def _section(value: Any, cls: type, path: PathTo) -> Any:
    from forge_host.plugins.structure import build_attrs, use_from

    if cls.__name__ == "Use" and cls.__module__ == "forge_host.types":
        return use_from(value, path)
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise FieldError(f"`{dotted(path)}` must be a section of keys, got {show(value)}", path=path)
    return build_attrs(cls, value, path)


def _enum(value: Any, cls: type[enum.Enum], path: PathTo) -> Any:
    for member in cls:
        if member.value == value or member.name == value:
            return member
    return _literal(value, tuple(member.value for member in cls), path)
