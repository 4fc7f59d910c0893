"""One section of the merged tree as an attrs object, with the source of every key written down.

    reader = Reader(host)
    training = reader.section(TrainingConfig, "training", tree.mapping["training"].mapping)

A `Reader` is used for one resolve: it turns trees into sections (`section`), chosen components (`component`), and keeps
`provenance` (dotted key to `Source`, defaults included).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from forge_host.config.paths import absolute_ref, located
from forge_host.config.plan import Part
from forge_host.config.schema import RunConfig
from forge_host.config.source import DEFAULT, Item, Source, walk
from forge_host.errors import PluginError, UsageError
from forge_host.plugins.building import load_target
from forge_host.plugins.coerce import FieldError, coerce, dotted
from forge_host.plugins.fields import field_types, holds_components, settable
from forge_host.plugins.structure import structure
from forge_host.plugins.suggest import did_you_mean, listing
from forge_host.types import Kind, Use

if TYPE_CHECKING:
    from forge_host.plugins import Entry, PluginHost

T = TypeVar("T")
MAX_LISTED = 12


class NotPlain(TypeError):
    """A value that YAML cannot hold."""


def to_plain(value: Any) -> Any:
    """A field's value as YAML data; raises `NotPlain` for objects, callables and the like."""
    if value is None or isinstance(value, (str, int, float, bool)) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, Use):  # the form that a component inside a component is written in
        return {"use": value.ref, **to_plain(value.config)}
    if attrs.has(type(value)):
        return fields_of(value)
    raise NotPlain(f"{type(value).__name__} is not plain data")


def fields_of(instance: Any) -> dict[str, Any]:
    """Every constructor field of an attrs object by the name its constructor takes; those not plain are left out."""
    values = {}
    for field in attrs.fields(type(instance)):
        if not field.init:
            continue
        try:
            values[field.alias or field.name] = to_plain(getattr(instance, field.name))
        except NotPlain:
            continue
    return values


class Reader:
    """Turns parts of the merged tree into objects and remembers sources."""

    def __init__(self, host: PluginHost) -> None:
        self.host = host
        self.provenance: dict[str, Source] = {}
        self.notes: list[str] = []

    def record(self, key: str, item: Item) -> None:
        for name, leaf in walk(item, key):
            self.provenance[name] = leaf.source

    def defaults(self, key: str, values: Mapping[str, Any], source: Source = DEFAULT) -> None:
        """`source` for each of `values` below `key` that nothing recorded yet set."""
        for name in values:
            place = f"{key}.{name}" if key else name
            if place not in self.provenance and not any(known.startswith(place + ".") for known in self.provenance):
                self.provenance[place] = source

    def section(self, cls: type[T], key: str, items: Mapping[str, Item], what: str = "config key") -> T:
        """An instance of attrs class `cls`; an unknown key or wrong type is a `UsageError` with its line."""
        known = list(settable(cls))
        for name, item in items.items():
            if name not in known:
                raise unknown_key(f"{key}.{name}" if key else name, name, item, known, what)
        instance = self._structure(cls, key, items)
        for name, item in items.items():
            self.record(f"{key}.{name}" if key else name, item)
        self.defaults(key, fields_of(instance))
        return instance

    def _structure(self, cls: type[T], key: str, items: Mapping[str, Item]) -> T:
        try:
            return structure(cls, {name: item.plain for name, item in items.items()}, key)
        except FieldError as error:
            inside = dotted(error.path)
            full = f"{key}.{inside}" if key and inside else key or inside
            message = error.message.replace(f"`{inside}`", f"`{full}`", 1) if inside else f"`{key}`: {error.message}"
            raise UsageError(message, where=_place(items, error.path), fix=error.fix) from None
        except UsageError as error:  # the class's own rule about its values
            raise UsageError(error.message, where=error.where or _place(items, ()), fix=error.fix) from None

    def value(self, key: str, item: Item, tp: Any) -> Any:
        """One value as type `tp`, under the same rules as a section's fields."""
        try:
            value = coerce(item.plain, tp, (key,))
        except FieldError as error:
            raise UsageError(error.message, where=item.source.where, fix=error.fix) from None
        self.record(key, item)
        return value

    def find(self, kind: Kind, ref: Item, key: str) -> Entry:
        """The component that `ref` names; the error says where it was asked for."""
        if not isinstance(ref.value, str) or not ref.value:
            raise UsageError(f"`{key}` names a component, not {ref.plain!r}", where=ref.source.where)
        try:
            return self.host.find(kind, absolute_ref(ref.value, ref.source))
        except PluginError as error:
            if ref.source.layer == "default":
                raise
            raise PluginError(error.message, where=error.where or f"{ref.source.where}, {key}", fix=error.fix) from None

    def component(
        self, entry: Entry, key: str, items: Mapping[str, Item], given: Mapping[str, Any] | None = None,
        besides: Iterable[str] = (),
    ) -> Part:  # fmt: skip
        """The chosen component with its keys checked against its fields and its defaults filled in.

        `given` holds fields set by the host, such as a dataset's `path`; `besides` names what else the section may
        hold, for suggestions. Keys of a plain class or function are checked against its signature.
        """
        cls = self.host.config_class(entry)
        items = {name: _located(cls, name, item) for name, item in items.items()}
        values: dict[str, Any] = {**(given or {}), **{name: item.plain for name, item in items.items()}}
        needs = {*entry.spec.needs, *(_named(entry) & {"ref_logprobs", "old_logprobs"})}
        token_level = False
        if cls is None:
            try:
                self.host.configure(entry.kind, Use(entry.ref, values))
            except FieldError as error:
                place = _place(items, error.path)
                raise UsageError(f"`{key}`: {error.message}", where=place, fix=error.fix) from None
        else:
            known = list(settable(cls))
            for name, item in items.items():
                if name not in known or name in (given or {}):
                    own = [option for option in known if option not in (given or {})]
                    raise unknown_key(f"{key}.{name}", name, item, [*own, *besides], f"{entry.describe()} has no key")
            source = next(iter(items.values())).source if items else DEFAULT
            extra = {name: Item(value, source) for name, value in (given or {}).items()}
            instance: Any = self._structure(cls, key, {**extra, **items})
            values, token_level = fields_of(instance), bool(getattr(instance, "token_level", False))
        for name, item in items.items():
            self.record(f"{key}.{name}", item)
        self.defaults(key, {name: value for name, value in values.items() if name not in (given or {})})
        takes = _named(entry, optional=entry.kind == "advantage")
        return attrs.evolve(part_of(entry, values, needs), takes=takes, token_level=token_level)


def _located(cls: type | None, name: str, item: Item) -> Item:
    """A component's key with relative paths made absolute where the field names files or components of its own."""
    attribute = settable(cls).get(name) if cls is not None else None
    if cls is None or attribute is None:
        return item
    if attribute.metadata.get("file"):
        return located(item, every=True)
    return located(item, every=False) if holds_components(field_types(cls)[attribute.name]) else item


def names_plugin(host: PluginHost, kind: Kind, ref: str) -> bool:
    """Whether a reference that was not found is still about plugins, so that its error must be shown as it is: a name
    offered twice, or one of a plugin that is installed and broken, blocked or without such a component."""
    plugin = ref.partition("/")[0]
    offered = any(ref in (entry.spec.name, entry.ref) for entry in host.entries(kind))
    return ":" in ref or offered or any(record.name == plugin for record in host.records)


def _place(items: Mapping[str, Item], path: tuple[str, ...]) -> str | None:
    """Where the value at `path` was written, or the closest thing around it; None when nothing was."""
    children: Any = items
    written = (item.source.where for item in items.values() if item.source.layer in ("file", "command line"))
    where = next(written, None)
    for step in path:
        item = children.get(step) if isinstance(children, Mapping) else None
        if item is None and isinstance(children, list) and step.isdigit() and int(step) < len(children):
            item = children[int(step)]
        if item is None:
            break
        where, children = item.source.where, item.value
    return where


def _named(entry: Entry, optional: bool = False) -> frozenset[str]:
    """What a loss or advantage names in its signature without a default; with `optional` also what has one.

    One with a separate `config` has a heavy module that is not imported here; it says what it needs in `needs`.
    """
    if entry.kind not in ("loss", "advantage") or entry.spec.config is not None:
        return frozenset()
    target: Any = load_target(entry)
    if isinstance(target, type):
        target = getattr(target, "forward", None) or target.__call__
    parameters = inspect.signature(target).parameters.values()
    return frozenset(p.name for p in parameters if optional or p.default is inspect.Parameter.empty)


def part_of(entry: Entry, values: Mapping[str, Any], needs: Iterable[str] = ()) -> Part:
    """The entry as part of a plan, with every field's value."""
    return Part(
        kind=entry.kind, name=entry.spec.name, plugin=entry.plugin, use=Use(entry.ref, dict(values)),
        origin=str(entry.origin), needs=frozenset((*entry.spec.needs, *needs)),
    )  # fmt: skip


def _nested(name: str) -> list[str]:
    """Dotted keys of the host's own sections whose last part is `name`: it was written one level too high."""
    found = []
    for field in attrs.fields(RunConfig):
        cls = getattr(field.default, "factory", None)
        if isinstance(cls, type) and attrs.has(cls) and name in attrs.fields_dict(cls):
            found.append(f"{field.name}.{name}")
    return found


def unknown_key(key: str, name: str, item: Item, known: list[str], what: str) -> UsageError:
    """The error for a key that nothing reads, with near matches or else the keys there are."""
    message = f"config key `{key}` is unknown" if what == "config key" else f"{what} `{name}`"
    listed = (
        f"known keys: {listing(known)}" if len(known) <= MAX_LISTED else "`forge-host config schema` lists the keys"
    )
    inside = _nested(name) if what == "config key" and "." not in key else []
    fix = f"did you mean {' or '.join(f'`{k}`' for k in inside)}?" if inside else did_you_mean(name, known) or listed
    return UsageError(message, where=next(walk(item))[1].source.where if item.mapping else item.source.where, fix=fix)
