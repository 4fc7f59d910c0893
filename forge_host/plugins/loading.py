"""Level 1: import one plugin's declaration module, check it, and collect what it declares.

    loaded = load_plugin(record, info)        # raises LoadFailure with a state and a sentence
    loaded.entries                            # its components
    loaded.implementation                     # the module or object that implements hooks

pluggy's own `load_setuptools_entrypoints` is not used: one broken plugin would abort it and of two distributions with
one name one would vanish. The API version is checked before the hooks, so a plugin for a newer host says so instead of
failing over a hook that this host does not know. Hooks are checked on a scratch manager that holds one plugin, which
also tells whose components they are. pluggy 1.6 drops arguments that have a default and 1.7 passes them: they are
refused, and both behave alike.
"""

from __future__ import annotations

import importlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs
import pluggy

from forge_host.hookspecs import DECLARATION_HOOKS, HOOKS, KIND_HOOKS, PROJECT, ForgePlugin, ForgeSpecs
from forge_host.plugins.records import Entry, PluginRecord, State
from forge_host.plugins.suggest import did_you_mean, listing
from forge_host.plugins.targets import cause, import_file
from forge_host.types import CommandSpec, ComponentSpec, HostInfo

T = TypeVar("T")


@attrs.frozen
class Loaded:
    """A plugin that passed every check."""

    record: PluginRecord
    implementation: Any
    entries: tuple[Entry, ...]
    commands: tuple[CommandSpec, ...]
    deprecations: tuple[str, ...] = ()


class LoadFailure(Exception):
    """Why a plugin was not accepted; `str()` is one sentence, the cause is chained."""

    def __init__(self, reason: str, state: State = "failed") -> None:
        super().__init__(reason)
        self.state: State = state


def load_plugin(record: PluginRecord, info: HostInfo) -> Loaded:
    """Imports and checks the plugin that `record` names; nothing is registered anywhere."""
    start = time.perf_counter()
    try:
        implementation = _import(record)
    except LoadFailure:
        raise
    except (Exception, SystemExit) as error:
        raise LoadFailure(f"importing it raised {cause(error)}") from error
    seconds = time.perf_counter() - start
    api = _check_api(implementation, info)
    hooks = _check_hooks(implementation)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(ForgeSpecs)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            manager.register(implementation, name=record.name)
            manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise LoadFailure(" ".join(str(error).split())) from error
    for warning in caught:  # shown once, at the plugin's own line, and kept for `doctor`
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    entries = tuple(_entries(manager, hooks, record, info))
    commands = tuple(_declared(manager, "forge_commands", CommandSpec, info)) if "forge_commands" in hooks else ()
    done = attrs.evolve(
        record,
        state="loaded",
        reason="",
        api=api,
        import_seconds=seconds,
        hooks=tuple(sorted(hooks)),
        components=tuple(sorted(f"{entry.kind}:{entry.spec.name}" for entry in entries)),
    )
    return Loaded(done, implementation, entries, commands, tuple(str(warning.message) for warning in caught))


def _import(record: PluginRecord) -> Any:
    value = record.origin.entry_point
    if value.endswith(".py"):
        return import_file(value)
    location, _, attribute = value.partition(":")
    found: Any = importlib.import_module(location.strip())
    for part in attribute.strip().split(".") if attribute.strip() else ():
        if not hasattr(found, part):
            raise LoadFailure(f"its entry point names `{part}`, which `{location}` does not have")
        found = getattr(found, part)
    return found() if isinstance(found, type) else found


def _check_api(implementation: Any, info: HostInfo) -> str:
    """The FORGE_API stated by the object or its module; same major, minor not newer than the host's."""
    stated = getattr(implementation, "FORGE_API", None)
    if stated is None and not inspect.ismodule(implementation):
        stated = getattr(inspect.getmodule(type(implementation)), "FORGE_API", None)
    if stated is None:
        raise LoadFailure(f'it states no API version; put FORGE_API = "{info.api}" into its declaration module')
    parts = stated.split(".") if isinstance(stated, str) else []
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise LoadFailure(f'its FORGE_API is {stated!r}, expected text like "{info.api}"')
    major, minor = map(int, parts)
    host_major, host_minor = map(int, info.api.split("."))
    if (major, minor) > (host_major, host_minor):
        raise LoadFailure(
            f"it is written for host API {stated}, this host ({info.version}) has {info.api}; upgrade forge-host",
            "incompatible",
        )
    if major < host_major:
        raise LoadFailure(
            f"it is written for host API {stated}, this host ({info.version}) has {info.api}; upgrade the plugin",
            "incompatible",
        )
    return f"{major}.{minor}"


def _check_hooks(implementation: Any) -> list[str]:
    """Names of the hooks it implements, each checked; `LoadFailure` names the first mistake."""
    manager = pluggy.PluginManager(PROJECT)
    found: list[str] = []
    for name in dir(implementation):
        options = manager.parse_hookimpl_opts(implementation, name)
        if options is None:
            _check_unmarked(implementation, name)
            continue
        hook = options.get("specname") or name
        if hook not in HOOKS:
            known = did_you_mean(hook, HOOKS) or f"known: {listing(HOOKS)}"
            raise LoadFailure(f"hook `{hook}` does not exist; {known}")
        if hook in DECLARATION_HOOKS and (options["wrapper"] or options["hookwrapper"]):
            raise LoadFailure(f"declaration hook `{hook}` is a wrapper; return its records instead")
        _check_signature(getattr(implementation, name), hook, is_wrapper=options["wrapper"] or options["hookwrapper"])
        found.append(hook)
    if not found:
        raise LoadFailure("it implements no hook; mark at least one function with `@hookimpl`")
    return found


def _check_unmarked(implementation: Any, name: str) -> None:
    """A function with a hook's name that pluggy would overlook."""
    value = getattr(implementation, name, None) if name in HOOKS else None
    if value is None or getattr(value, "__func__", value) is getattr(ForgePlugin, name):
        return
    if callable(value):
        raise LoadFailure(f"`{name}` has a hook's name and no mark; put `@hookimpl` above it")


def _check_signature(function: Callable[..., Any], hook: str, *, is_wrapper: bool) -> None:
    known = [name for name in inspect.signature(getattr(ForgeSpecs, hook)).parameters if name != "self"]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise LoadFailure(f"hook `{hook}` takes `{parameter}`; name its arguments: {listing(known)}")
        if parameter.name not in known:
            guess = did_you_mean(parameter.name, known) or f"known: {listing(known)}"
            raise LoadFailure(f"hook `{hook}` has no argument `{parameter.name}`; {guess}")
        if parameter.default is not parameter.empty:
            raise LoadFailure(f"hook `{hook}` gives its argument `{parameter.name}` a default; remove the default")
    if inspect.iscoroutinefunction(function):
        raise LoadFailure(f"hook `{hook}` is async, and nobody would await it; make it a plain function")
    may_yield = is_wrapper or hook in DECLARATION_HOOKS or hook == "forge_check_plan"
    if inspect.isgeneratorfunction(function) and not may_yield:
        raise LoadFailure(f"hook `{hook}` is a generator and would never run; remove the `yield`")


def _entries(
    manager: pluggy.PluginManager, hooks: Iterable[str], record: PluginRecord, info: HostInfo
) -> Iterable[Entry]:
    kinds = {hook: kind for kind, hook in KIND_HOOKS.items()}
    seen: set[tuple[str, str]] = set()
    for hook in sorted(set(hooks) & kinds.keys()):
        for spec in _declared(manager, hook, ComponentSpec, info):
            if (hook, spec.name) in seen:
                raise LoadFailure(f"it declares the {kinds[hook]} `{spec.name}` twice")
            seen.add((hook, spec.name))
            yield Entry(kinds[hook], record.name, spec, record.origin)


def _declared(manager: pluggy.PluginManager, hook: str, record_type: type[T], info: HostInfo) -> list[T]:
    """The records one declaration hook returns; the manager holds one plugin, so they are all its own."""
    try:
        results: list[Any] = getattr(manager.hook, hook)(host=info)
        # pluggy leaves out None, which here means a forgotten `return`.
        if not results:
            raise LoadFailure(f"hook `{hook}` returned None, expected a list of {record_type.__name__}")
        if isinstance(results[0], (str, Mapping)) or not isinstance(results[0], Iterable):
            raise LoadFailure(f"hook `{hook}` returned {results[0]!r}, expected a list of {record_type.__name__}")
        declared = [item for result in results for item in result]
    except LoadFailure:
        raise
    except (Exception, SystemExit) as error:
        raise LoadFailure(f"hook `{hook}` raised {cause(error)}") from error
    for item in declared:
        if not isinstance(item, record_type):
            raise LoadFailure(f"hook `{hook}` returned {item!r} in its list, expected {record_type.__name__}")
    return declared
