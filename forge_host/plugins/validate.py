"""Whether one plugin keeps every rule: what `doctor` checks, and that each component can be imported and configured.

    problems = validate("dapo")       # also a path: validate("./my_plugin.py")

Unlike `doctor` this imports the components' own modules, torch included: it runs the plugin's code.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from forge_host.api import ADVANTAGE_ARGUMENTS, LOSS_ARGUMENTS, REWARD_ARGUMENTS
from forge_host.errors import ForgeError
from forge_host.plugins.building import config_class, load_target
from forge_host.plugins.calling import CallByName
from forge_host.plugins.coerce import FieldError
from forge_host.plugins.doctor import Problem, diagnose
from forge_host.plugins.fields import field_types, settable
from forge_host.plugins.host import PluginHost
from forge_host.plugins.records import Entry
from forge_host.plugins.structure import structure
from forge_host.plugins.targets import cause
from forge_host.types import KINDS, AlgorithmParts, Use

#: Components that are called by name, and the names they may ask for.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "loss": LOSS_ARGUMENTS,
    "advantage": ADVANTAGE_ARGUMENTS,
    "reward": REWARD_ARGUMENTS,
}


def validate(name: str) -> list[Problem]:
    """Every problem of one plugin, errors first; `name` is an installed plugin's or a file's path.

    Raises:
        PluginError: no such plugin or file.
    """
    files = [name] if name.endswith(".py") else []
    names = [] if files else [name]
    # Importing the components finds what these two checks find, with the cause.
    problems = [p for p in diagnose(names, files=files) if p.check not in ("requires", "target")]
    host = PluginHost.load(names, files=files)
    own = [record for record in host.records if record.name == name or (files and not record.origin.distribution)]
    if any(record.broken for record in own):
        return problems
    plugins = {record.name for record in own}
    for kind in KINDS:
        for entry in host.entries(kind):
            if entry.plugin in plugins:
                problems += _component(entry)
    for _, command in host.commands():
        problems += _command(name, command.name, command.target)
    return sorted(problems, key=lambda p: (p.level != "error", p.check))


def _component(entry: Entry) -> Iterable[Problem]:
    try:
        target = load_target(entry)
        cls = config_class(entry)
    except ForgeError as error:
        yield _error(entry, "target", error.message, error.fix or "mend the target")
        return
    if cls is not None:
        yield from _config(entry, cls)
    if entry.kind in ARGUMENTS:
        called = _called(target)
        if called is None:
            yield _error(entry, "arguments", "its objects cannot be called", "give it a `__call__` method")
            return
        try:
            CallByName(called, ARGUMENTS[entry.kind], entry.describe())
        except ForgeError as error:
            yield _error(entry, "arguments", error.message, error.fix or "change its signature")
    if entry.kind == "algorithm" and cls is not None:
        yield from _algorithm(entry, cls)


def _config(entry: Entry, cls: type) -> Iterable[Problem]:
    types = field_types(cls)
    for name, attribute in settable(cls).items():
        if not attribute.metadata.get("help"):
            fix = "declare it with `forge_host.api.field(help=...)`"
            yield _error(entry, "help", f"field `{name}` of `{cls.__name__}` has no help", fix)
        if types[attribute.name] is Any and attribute.type not in (Any, "Any"):
            message = f"field `{name}` of `{cls.__name__}` has a type that is not there at run time, so is not checked"
            yield Problem(entry.plugin, "type", "warning", f"{entry.describe()}: {message}", "import the type")
    values = {name: a for name, a in settable(cls).items() if a.default is attrs.NOTHING}
    if values:
        return  # nothing to send around without the values that only a user knows
    try:
        instance = cls()
        again: Any = structure(cls, json.loads(json.dumps(to_plain(instance))), entry.describe())
    except (FieldError, ValueError, TypeError) as error:
        yield _error(entry, "round-trip", f"its defaults are not valid values: {error}", "give defaults that pass")
        return
    if to_plain(again) != to_plain(instance):
        yield _error(entry, "round-trip", "its defaults change when written and read again", "use plain values")


def _algorithm(entry: Entry, cls: type) -> Iterable[Problem]:
    try:
        parts = cls().build()
    except Exception as error:
        yield _error(entry, "build", f"`build()` with the defaults raised {cause(error)}", "mend `build`")
        return
    if not isinstance(parts, AlgorithmParts):
        yield _error(entry, "build", f"`build()` returned {type(parts).__name__}", "return `AlgorithmParts`")


def _called(target: Any) -> Any:
    """A stand-in with the signature of the component's call, without making the component."""
    if not isinstance(target, type):
        return target
    is_module = any(base.__name__ == "Module" and base.__module__.startswith("torch.nn.") for base in target.__mro__)
    function = getattr(target, "forward" if is_module else "__call__", None)
    return functools.partial(function, None) if inspect.isfunction(function) else None


def _command(plugin: str, name: str, target: str) -> Iterable[Problem]:
    import click

    from forge_host.plugins.targets import resolve

    try:
        command = resolve(target, f"command `{name}`")
    except ForgeError as error:
        yield Problem(plugin, "command", "error", str(error), error.fix or "mend the target")
        return
    if not isinstance(command, click.Command):
        message = f"command `{name}`: `{target}` is not a click command"
        yield Problem(plugin, "command", "error", message, "decorate it with `@click.command()`")


def _error(entry: Entry, check: str, message: str, fix: str) -> Problem:
    return Problem(entry.plugin, check, "error", f"{entry.describe()}: {message}", fix)


def to_plain(value: Any) -> Any:
    """An attrs instance as what YAML and JSON hold: mappings, lists, text, numbers, truth values, null."""
    if isinstance(value, Use):
        return {"use": value.ref, **to_plain(value.config)}
    if attrs.has(type(value)):
        return {name: to_plain(getattr(value, a.name)) for name, a in settable(type(value)).items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(item) for item in value)
    return value
