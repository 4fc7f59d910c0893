"""`PluginHost`: the loaded plugins of one process, and the way to their components.

    host = PluginHost.load(("dapo", "math"), strict=True)
    reward = host.build("reward", Use("math"))
    host.hooks.forge_run_started(run)
    host.lock().write("plugins.lock")

Another process does not get this object (modules do not pickle): it calls `PluginHost.from_lock(lock)`, which loads the
same plugins and fails by name when anything differs.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from forge_host._version import API_VERSION, __version__
from forge_host.errors import PluginError
from forge_host.plugins import building, references
from forge_host.plugins.discovery import discover
from forge_host.plugins.hooks import Hooks, HookTiming
from forge_host.plugins.loading import Loaded, LoadFailure, load_plugin
from forge_host.plugins.lock import PluginLock, make_lock
from forge_host.plugins.records import BUILTIN, Entry, Origin, PluginRecord
from forge_host.plugins.suggest import did_you_mean, listing
from forge_host.plugins.targets import is_file_reference, local_file
from forge_host.types import KINDS, CommandSpec, HostInfo, Kind, Use

AUTOLOAD = "FORGE_HOST_PLUGIN_AUTOLOAD"
DOCTOR = "run `forge-host plugins doctor`"


def builtin_record() -> PluginRecord:
    """The host's own components; declared like any plugin's, in the module `forge_host.builtin`."""
    location = str(Path(__file__).parents[2])
    return PluginRecord(name=BUILTIN, origin=Origin("forge-host", __version__, "forge_host.builtin", location))


class PluginHost:
    """Made by `load` or `from_lock`; `info` is what declaration hooks are told about this host."""

    def __init__(self, records: Sequence[PluginRecord], *, strict: bool, on_demand: bool) -> None:
        self.info = HostInfo(
            version=__version__, api=API_VERSION, python=platform.python_version(), platform=sys.platform
        )
        self.strict, self._on_demand = strict, on_demand
        self._records = list(records)
        self._loaded: dict[str, Loaded] = {}
        self._hooks: Hooks | None = None
        self._timings: dict[str, HookTiming] = {}
        self._files: set[str] = set()

    # --- loading ---

    @classmethod
    def load(
        cls,
        select: Sequence[str] | None = None,
        block: Sequence[str] = (),
        files: Sequence[str] = (),
        strict: bool = False,
    ) -> PluginHost:
        """Loads plugins of this environment; the built-in ones always.

        Args:
            select: names to load, and later those that references name; None is every installed plugin (with
                FORGE_HOST_PLUGIN_AUTOLOAD=0 only those that references name); empty is none.
            block: names that are not even imported; stronger than `select`.
            files: paths of one-file plugins.
            strict: for a run: a *selected* plugin that fails is a `PluginError`. A broken plugin that nobody asked for
                never stops anything; it is in `problems`. Without `strict` (browsing) that holds for all.

        Raises:
            PluginError: a name that is not installed, whatever `strict` is.
        """
        names = None if select is None else tuple(_clean(select))
        everything = names is None and os.environ.get(AUTOLOAD, "1") != "0"
        blocked = set(_clean(block))
        if BUILTIN in blocked:
            raise PluginError(f"`{BUILTIN}` is the host itself and cannot be blocked", where="--no-plugin")
        records = [builtin_record(), *discover(), *(_file_record(path) for path in files)]
        installed = [record.name for record in records]
        check_installed(blocked, installed, "--no-plugin")
        check_installed(names or (), installed, "--plugins")
        _check_files(records)
        host = cls(records, strict=strict, on_demand=names is None or bool(names))
        for index, record in enumerate(host._records):
            if record.name in blocked and not record.broken:
                host._records[index] = attrs.evolve(record, state="blocked", reason="blocked by `--no-plugin`")
        file_names = {record.name for record in records if is_file_reference(record.origin.entry_point)}
        wanted = {BUILTIN, *file_names, *(installed if everything else names or ())} - blocked
        for name in sorted(wanted):
            host._load(name, strict=name == BUILTIN or (strict and (name in file_names or not everything)))
        return host

    @classmethod
    def from_lock(cls, lock: PluginLock, where: str = "this process") -> PluginHost:
        """The same plugins in another process; `PluginError` names every difference from the lock."""
        files = [plugin.path for plugin in lock.plugins if plugin.path]
        names = [plugin.name for plugin in lock.plugins if not plugin.path and plugin.name != BUILTIN]
        try:
            host = cls.load(names, files=files, strict=True)
            host._files.update(str(local_file(path, "the lock")) for path in lock.files)
        except PluginError as error:
            raise PluginError(f"plugins of the lock cannot be loaded: {error}", where=where) from error
        host._on_demand = False
        lock.check(host.lock(), where)
        return host

    def ensure(self, name: str) -> None:
        """Loads one more installed plugin; `PluginError` when it is unknown, blocked or broken. Never installs."""
        name = _clean([name])[0] if name.strip() else name
        if name not in self._loaded:
            check_installed([name], [record.name for record in self._records])
            self._load(name, strict=True)

    def _load(self, name: str, *, strict: bool) -> None:
        record = self._record(name)
        assert record is not None, name
        index = self._records.index(record)
        if record.state == "discovered":
            try:
                self._loaded[name] = load_plugin(record, self.info)
                self._records[index] = self._loaded[name].record
                self._hooks = None
                return
            except LoadFailure as failure:
                record = attrs.evolve(record, state=failure.state, reason=str(failure))
                self._records[index] = record
                if strict:
                    raise _refusal(record) from failure
        if strict:
            raise _refusal(record)

    def _record(self, name: str) -> PluginRecord | None:
        """The record of a plugin; one that breaks the naming rule does not hide another of that name."""
        found = [record for record in self._records if record.name == name]
        return min(found, key=lambda record: record.state == "failed", default=None)

    # --- what there is ---

    @property
    def records(self) -> list[PluginRecord]:
        """Every plugin seen, the built-in first, then by name; also those not loaded, with state and reason."""
        return sorted(self._records, key=lambda r: (r.name != BUILTIN, r.name, r.origin.distribution))

    @property
    def problems(self) -> list[PluginRecord]:
        """Plugins that are broken; a run that does not need them shows them and goes on."""
        return [record for record in self.records if record.broken]

    @property
    def deprecations(self) -> list[str]:
        """What loaded plugins use that a later host removes."""
        return [text for name in sorted(self._loaded) for text in self.deprecations_of(name)]

    def deprecations_of(self, name: str) -> tuple[str, ...]:
        return self._loaded[name].deprecations if name in self._loaded else ()

    @property
    def hooks(self) -> Hooks:
        """The hooks of the loaded plugins; made again when `ensure` adds one, since order is by name."""
        if self._hooks is None:
            plugins = {name: loaded.implementation for name, loaded in self._loaded.items()}
            self._hooks = Hooks(plugins, self._timings)
        return self._hooks

    def entries(self, kind: Kind) -> list[Entry]:
        """The components of one kind, sorted by name and plugin."""
        _check_kind(kind)
        return [entry for entry in self._entries() if entry.kind == kind]

    def commands(self) -> list[tuple[str, CommandSpec]]:
        """Commands that plugins add, each with its plugin's name."""
        return [(name, command) for name in sorted(self._loaded) for command in self._loaded[name].commands]

    def _entries(self) -> list[Entry]:
        found = [entry for loaded in self._loaded.values() for entry in loaded.entries]
        return sorted(found, key=lambda e: (KINDS.index(e.kind), e.spec.name, e.plugin))

    # --- components ---

    def find(self, kind: Kind, ref: str) -> Entry:
        """The component that `ref` names: `name`, `plugin/name`, `package.module:Attr` or `path/file.py:Attr`.

        When plugins were selected, an installed one of that name is loaded if need be: `dapo/dapo` and `dapo` load the
        plugin `dapo`. Imports no target.

        Raises:
            PluginError: nothing or more than one thing has that name, or its plugin is broken or blocked.
        """
        _check_kind(kind)
        if references.is_direct(ref):
            named = references.direct(kind, ref)
            if is_file_reference(ref):
                self._files.add(named.origin.location)
            return named
        plugin = ref.partition("/")[0]
        entry = references.lookup(self._entries(), kind, ref)
        if entry is None and self._on_demand and (record := self._record(plugin)) and record.state == "discovered":
            self.ensure(plugin)
            entry = references.lookup(self._entries(), kind, ref)
        if entry is None:
            raise references.unknown(self._entries(), kind, ref, self._notes(plugin))
        if _version(entry.spec.since) > _version(self.info.api):
            raise PluginError(
                f"{entry.describe()} works from host API {entry.spec.since} on, this host has {self.info.api}",
                fix="upgrade forge-host",
            )
        return entry

    def config_class(self, entry: Entry) -> type | None:
        """The attrs class of the component's configuration; None for functions and classes without one."""
        return building.config_class(entry)

    def configure(self, kind: Kind, use: Use) -> Any:
        """The component's values, checked without building it: an attrs instance, or a dict (see `building`)."""
        return building.configure(self.find(kind, use.ref), use.config)

    def build(self, kind: Kind, use: Use) -> Any:
        """The component with its values. `UsageError`: the values are wrong; `PluginError`: it cannot be made.

        One that is made of others (`mix`) has `forge_compose(host)`, which is called to build them.
        """
        component = building.build(self.find(kind, use.ref), use.config)
        compose = getattr(component, "forge_compose", None)
        if compose is not None:
            compose(self)
        return component

    def lock(self) -> PluginLock:
        """Versions and hashes of what is loaded, and of the files that references named so far."""
        return make_lock([loaded.record for loaded in self._loaded.values()], self._files)

    def _notes(self, asked: str) -> dict[str, PluginError]:
        """By plugin, why its components are not there; for the error about an unknown name."""
        return {
            record.name: _refusal(record)
            for record in self._records
            if record.broken or record.state == "blocked" or (record.state == "discovered" and record.name == asked)
        }


def _clean(names: Iterable[str]) -> list[str]:
    """Names as typed (`Math_Reward `) to names as they are (`math-reward`)."""
    return [re.sub(r"[-_.]+", "-", name.strip()).lower() for name in names if name.strip()]


def check_installed(names: Iterable[str], installed: Sequence[str], where: str | None = None) -> None:
    """Raises `PluginError` with near matches for the first of `names` that is not `installed`."""
    for name in sorted(_clean(names)):
        if name not in installed:
            others = [plugin for plugin in installed if plugin != BUILTIN]
            fix = did_you_mean(name, installed) or f"installed: {listing(others)}"
            raise PluginError(f"plugin `{name}` is not installed", where=where, fix=fix)


def _file_record(location: str) -> PluginRecord:
    path = local_file(location, "--plugin-file")
    name = references.component_name(path.stem)
    return PluginRecord(name=name, origin=Origin(entry_point=str(path), location=str(path)))


def _check_files(records: Sequence[PluginRecord]) -> None:
    owners: Mapping[str, list[PluginRecord]] = {record.name: [] for record in records}
    for record in records:
        owners[record.name].append(record)
    for name, same in owners.items():
        if len(same) > 1 and any(is_file_reference(record.origin.entry_point) for record in same):
            claims = " and ".join(str(record.origin) for record in same)
            raise PluginError(
                f"the plugin name `{name}` is taken by {claims}", where="--plugin-file", fix="rename the file"
            )


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        fix = did_you_mean(kind, KINDS) or f"known: {listing(KINDS)}"
        raise PluginError(f"`{kind}` is not a kind of component", fix=fix)


def _refusal(record: PluginRecord) -> PluginError:
    if record.state == "blocked":
        return PluginError(f"{record.describe()} is {record.reason}", fix=f"leave out `--no-plugin {record.name}`")
    if record.state == "discovered":
        return PluginError(f"{record.describe()} is not selected", fix=f"add `{record.name}` to `--plugins`")
    return PluginError(f"{record.describe()} cannot be loaded: {record.reason}", fix=DOCTOR)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
