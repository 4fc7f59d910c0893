"""From a chosen component and plain values to the object: resolve the target, check the values, build.

    reward = build(entry, {"max_words": 20})

How the values reach it depends on what the target is:
- `spec.config` given: the values become that attrs class, and `target(config)` builds the component;
- an attrs class: its fields are the values;
- another class (a `torch.nn.Module`): the values are the arguments of its `__init__`;
- a function or another object: takes no values and is used as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import attrs

from forge_host.errors import ForgeError, PluginError, UsageError
from forge_host.plugins.coerce import FieldError, coerce
from forge_host.plugins.records import Entry
from forge_host.plugins.structure import check_keys, structure
from forge_host.plugins.targets import cause, missing_modules, resolve


def described(entry: Entry) -> str:
    """ "loss `dapo/dapo` (forge-plugin-dapo 0.1.0)", for errors that a plugin's author or packaging caused."""
    return f"{entry.describe()} ({entry.origin})" if entry.origin.distribution else entry.describe()


def check_requires(entry: Entry) -> None:
    """Raises `PluginError` when a module that the component needs is not installed."""
    missing = missing_modules(entry.spec.requires)
    if missing:
        names = " and ".join(f"`{name}`" for name in missing)
        raise PluginError(
            f"it needs {names}, not installed here", where=described(entry), fix=f"pip install {' '.join(missing)}"
        )


def load_target(entry: Entry) -> Any:
    """The target object of a component; what it requires must be installed."""
    check_requires(entry)
    return resolve(entry.spec.target, described(entry))


def config_class(entry: Entry) -> type | None:
    """The attrs class whose fields are the component's configuration, None when it has none.

    With `spec.config` only that (torch-free) class is imported, otherwise the target.
    """
    if entry.spec.config is None:
        target = load_target(entry)
        return target if isinstance(target, type) and attrs.has(target) else None
    found = resolve(entry.spec.config, described(entry))
    if not (isinstance(found, type) and attrs.has(found)):
        raise PluginError(
            f"its config `{entry.spec.config}` is not an attrs class",
            where=described(entry),
            fix="decorate it with `@attrs.frozen`",
        )
    return found


def configure(entry: Entry, values: Mapping[str, Any]) -> Any:
    """`values` checked against the component's configuration, before anything heavy: for a component with an attrs
    configuration an instance of it, otherwise the checked values as a dict."""
    cls = config_class(entry)
    if cls is not None:
        return structure(cls, values, entry.describe())
    return _arguments(load_target(entry), values, entry.describe())


def build(entry: Entry, values: Mapping[str, Any]) -> Any:
    """The component. Raises `UsageError` for wrong values, `PluginError` when it cannot be imported or made."""
    config = configure(entry, values)
    if entry.spec.config is None and attrs.has(type(config)):
        return config
    target = load_target(entry)
    try:
        if entry.spec.config is not None:
            return target(config)
        return target(**config) if isinstance(target, type) else target
    except ForgeError:
        raise
    except ValueError as error:
        # A ValueError is how a component refuses values that are wrong together.
        raise UsageError(str(error).rstrip("."), where=entry.describe()) from error
    except Exception as error:
        raise PluginError(
            f"making it raised {cause(error)}", where=described(entry), fix="run with FORGE_DEBUG=1 for the traceback"
        ) from error


def _arguments(target: Any, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` against the `__init__` of a class that is not an attrs class."""
    if not isinstance(target, type):
        if values:
            raise UsageError(f"key `{next(iter(values))}` is unknown", where=where, fix="it takes no settings")
        return {}
    parameters = _parameters(target)
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    try:
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            check_keys(values, named, ())
        hints = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
        checked = {name: coerce(value, hints.get(name, Any), (name,)) for name, value in values.items()}
        for parameter in parameters:
            if parameter.name in named and parameter.default is parameter.empty and parameter.name not in checked:
                raise FieldError(
                    f"key `{parameter.name}` is required", path=(parameter.name,), fix=_missing(parameter.name)
                )
    except FieldError as error:
        raise FieldError(error.message, path=error.path, where=where, fix=error.fix) from None
    return checked


def _missing(name: str) -> str:
    """What to do about an argument without a value; `config` is what an author calls the whole configuration."""
    if name == "config":
        return 'take its keys as arguments, or name its attrs class: ComponentSpec(..., config="module:Class")'
    return "set it, or give the argument a default"


def _parameters(cls: type) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(cls, eval_str=True).parameters.values())
    except NameError:
        # Annotations that exist only for the type checker: the names are still known.
        return list(inspect.signature(cls).parameters.values())
    except (ValueError, TypeError):
        return []
