"""Chooses the components of a run from the merged tree: algorithm and its parts, dataset, rewards, roles.

    part, parts = algorithm(reader, tree.mapping["algorithm"])

Used by `forge_host.config.assemble` only. Nothing heavy is imported: components are found and their keys checked
against torch-free attrs classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import attrs

from forge_host.config.canonical import ROLES, SERVICE_KEYS
from forge_host.config.merge import overlay
from forge_host.config.paths import COMPRESSED, DATA_FILES, data_reader, find_path
from forge_host.config.plan import Part
from forge_host.config.schema import DatasetConfig, TrainingConfig
from forge_host.config.sections import Reader, fields_of, names_plugin, to_plain
from forge_host.config.source import DEFAULT, Item, Source, tree
from forge_host.errors import PluginError, UsageError
from forge_host.plugins.fields import settable
from forge_host.plugins.structure import structure
from forge_host.types import KL, Aggregation, AlgorithmParts, Correction, Kind, SamplingParams, Use

T = TypeVar("T")
#: An algorithm's key, and the general section and key that replaces it.
REPLACES = {
    "n_samples": ("sampling", "n"), "max_tokens": ("sampling", "max_tokens"), "top_p": ("sampling", "top_p"),
    "temperature": ("sampling", "temperature"), "top_k": ("sampling", "top_k"), "stop": ("sampling", "stop"),
    "beta": ("kl", "beta"), "kl_estimator": ("kl", "estimator"), "kl_placement": ("kl", "placement"),
    "aggregation": ("aggregation", "mode"), "correction": ("correction", "mode"),
    "correction_level": ("correction", "level"), "correction_low": ("correction", "low"),
    "correction_high": ("correction", "high"), "old_policy": ("correction", "old_policy"),
    "entropy_coef": ("training", "entropy_coef"),
}  # fmt: skip
GENERAL_CLASSES: dict[str, type] = {
    "sampling": SamplingParams, "kl": KL, "aggregation": Aggregation, "correction": Correction,
    "training": TrainingConfig,
}  # fmt: skip
Items = Mapping[str, Item]


def algorithm(reader: Reader, item: Item | None, default: str, top: Items) -> tuple[Part, AlgorithmParts]:
    """The algorithm and the parts it is made of. Its keys that general sections of `top` replace have their values."""
    items = dict(mapping("algorithm", item))
    use = items.pop("use", None) or Item(default, DEFAULT)
    entry = reader.find("algorithm", use, "algorithm")
    key = entry.spec.name if entry.plugin else "algorithm"
    cls = reader.host.config_class(entry)
    part = reader.component(entry, key, {**items, **_replaced(cls, top)})
    reader.record("algorithm", use)
    instance = structure(cls, part.use.config, key) if cls else reader.host.build("algorithm", part.use)
    try:
        parts = instance.build()
    except (ValueError, TypeError) as error:
        raise UsageError(f"{part.describe()}: {error}", where=use.source.where) from error
    if not isinstance(parts, AlgorithmParts):
        raise PluginError(f"{part.describe()}: build() returned {type(parts).__name__}, not AlgorithmParts")
    return part, parts


def _replaced(cls: type | None, top: Items) -> dict[str, Item]:
    """Values that general sections set, by the algorithm's own names for them; its section then says what holds."""
    found = {}
    for name, (section, field) in REPLACES.items():
        given = (top[section].mapping or {}).get(field) if section in top else None
        if given is None or cls is None or name not in settable(cls):
            continue
        try:
            structure(GENERAL_CLASSES[section], {field: given.plain}, section)
        except UsageError:
            continue  # what is wrong with it is said, with its line, when its own section is read
        found[name] = given
    return found


def replaceable(reader: Reader, kind: Kind, chosen: Use, given: Item | None, preset: Source) -> tuple[Part, bool]:
    """A loss, advantage or sampler: the algorithm's, or what the configuration put in its place (then True)."""
    base = tree(chosen.config, preset)
    entry = reader.find(kind, Item(chosen.ref, preset), kind)
    reader.record(f"{kind}.use", Item(chosen.ref, preset))
    if given is None or given.value is None:
        return reader.component(entry, kind, base.mapping or {}), False
    if given.mapping is None:
        raise UsageError(f"`{kind}` is a component's name or a section, not {given.plain!r}", where=given.source.where)
    items = dict(given.mapping)
    use = items.pop("use", None)
    if use is not None:
        other = reader.find(kind, use, f"{kind}.use")
        reader.record(f"{kind}.use", overlay(Item(chosen.ref, preset), use))
        if other.ref != entry.ref:
            reader.notes.append(
                f"{other.describe()} replaces {entry.describe()} of {preset.where} ({use.source.where})"
            )
            return reader.component(other, kind, items), True
    merged = overlay(base, Item(items, given.source)).mapping
    return reader.component(entry, kind, merged or {}), True


def settings(reader: Reader, key: str, chosen: T, given: Item | None, preset: Source) -> tuple[T, dict[str, Any]]:
    """`aggregation`, `kl`, `correction` or `sampling`: the algorithm's values below the given ones."""
    items = mapping(key, given)
    base = tree(fields_of(chosen), preset)
    merged = overlay(base, Item(dict(items), given.source if given else preset)).mapping or {}
    value = reader.section(type(chosen), key, merged)
    return value, {name: to_plain(getattr(value, name)) for name in items}


def mapping(key: str, item: Item | None) -> Items:
    """A section's items; an error when it is no mapping."""
    if item is None:
        return {}
    if item.mapping is None:
        raise UsageError(f"`{key}` is a section of keys, not {item.plain!r}", where=item.source.where)
    return item.mapping


def dataset(reader: Reader, items: Items, default: str, key: str = "dataset") -> tuple[Part, DatasetConfig]:
    """The dataset component that `path` asks for, and the host's own keys of the section."""
    path = items.get("path") or tree(default, DEFAULT)
    if not isinstance(path.value, str) or not path.value:
        raise UsageError(f"`{key}.path` is a name or path, not {path.plain!r}", where=path.source.where)
    own = [field.name for field in attrs.fields(DatasetConfig) if field.name not in ("path", "extra")]
    general = reader.section(DatasetConfig, key, {name: items[name] for name in own if name in items})
    extra = {name: item for name, item in items.items() if name not in (*own, "path")}
    entry, given = _dataset_entry(reader, path, key)
    cls = reader.host.config_class(entry)
    # What both the host and the component read (`chat`) goes to both.
    both = {name: items[name] for name in own if name in items and cls is not None and name in settable(cls)}
    part = reader.component(entry, key, {**extra, **both}, given)
    reader.record(f"{key}.path", path)
    reader.provenance.pop(f"{key}.extra", None)
    shown = given.get("path", part.ref)
    keys = {name: value for name, value in part.use.config.items() if name not in given and name not in own}
    return part, attrs.evolve(general, path=shown, extra=keys)


def _dataset_entry(reader: Reader, path: Item, key: str) -> tuple[Any, dict[str, Any]]:
    """A component by name, or the component that reads the file, folder or hub name."""
    text, where = str(path.value), path.source.where
    name, found = data_reader(text), find_path(text, path.source)
    if name or text[:1] in "./~" and ".py:" not in text:
        if found is None:
            raise UsageError(f"dataset {text} does not exist", where=where, fix=f"check {key}.path")
        if found.is_file() and name is None:
            raise _unknown_file(text, where)
        return _reader_of(reader, name if name and found.is_file() else "hf", text, where), {"path": str(found)}
    try:
        return reader.find("dataset", path, f"{key}.path"), {}
    except PluginError:
        if found is not None and found.is_dir():
            return _reader_of(reader, "hf", text, where), {"path": str(found)}
        if found is not None:
            raise _unknown_file(text, where) from None
        if text.count("/") == 1 and not names_plugin(reader.host, "dataset", text):
            return _reader_of(reader, "hf", text, where), {"path": text}
        raise


def _unknown_file(text: str, where: str) -> UsageError:
    return UsageError(
        f"dataset {text} is a file of a kind that nothing reads", where=where,
        fix=f"known are {', '.join(DATA_FILES)}, each also with {COMPRESSED}",
    )  # fmt: skip


def _reader_of(reader: Reader, name: str, text: str, where: str) -> Any:
    try:
        return reader.host.find("dataset", name)
    except PluginError as error:
        what = "Hugging Face dataset" if name == "hf" else "dataset"
        raise UsageError(
            f"{what} `{text}` needs the dataset component `{name}`, and {error.message}", where=where,
            fix="install and select the plugin that provides it, or give a .jsonl file",
        ) from None  # fmt: skip


def listed(
    reader: Reader, kind: Kind, key: str, item: Item, weighted: bool, gates: dict[str, float] | None = None
) -> Iterator[tuple[Part, float]]:
    """Rewards or trackers with their weights: names, `{use: name, ...}` entries, or a mapping of names to keys.

    `gates` gets the threshold of each reward with a `gate`, by its label.
    """
    if not item.value:
        reader.record(key, item)
    for index, (use, fields) in enumerate(_entries(key, item)):
        place, items = f"{key}.{index}", dict(fields)
        weight = 1.0
        if weighted and "weight" in items:
            given = items.pop("weight")
            weight = reader.value(f"{place}.weight", given, float)
            reader.record(f"{place}.weight", given)
        gate = items.pop("gate", None) if gates is not None else None
        entry = reader.find(kind, use, place)
        part = reader.component(entry, place, items)
        if gate is not None and gates is not None and gate.value is not False:
            place_of_gate = f"reward.gates.{part.label}"
            gates[part.label] = 1.0 if gate.value is True else reader.value(place_of_gate, gate, float)
            reader.record(place_of_gate, gate)
        reader.record(f"{place}.use", use)
        yield part, weight


def _entries(key: str, item: Item) -> Iterator[tuple[Item, Items]]:
    if item.mapping is not None:
        if "use" in item.mapping:
            yield item.mapping["use"], {name: child for name, child in item.mapping.items() if name != "use"}
            return
        for name, child in item.mapping.items():
            fields = {"weight": child} if isinstance(child.value, (int, float)) else mapping(f"{key}.{name}", child)
            yield Item(name, child.source), fields
        return
    if not isinstance(item.value, list):
        raise UsageError(f"`{key}` is a list of component names, not {item.plain!r}", where=item.source.where)
    for child in item.value:
        if child.mapping is None:
            yield child, {}
        elif "use" in child.mapping:
            yield child.mapping["use"], {name: value for name, value in child.mapping.items() if name != "use"}
        elif len(child.mapping) == 1:
            yield from _entries(key, child)
        else:
            raise UsageError(f"an entry of `{key}` has no `use`", where=child.source.where, fix="add `use: NAME`")


def role(reader: Reader, kind: Kind, items: Items, default: str) -> tuple[Part, dict[str, Item]]:
    """A role's component, and the keys of its section that belong to `services` (`--trainer.procs 4`)."""
    fields = dict(items)
    use = fields.pop("use", None) or Item(default, DEFAULT)
    if kind == "transport" and use.value == "auto":
        return _auto_transport(reader, use, fields), {}
    entry = reader.find(kind, use, f"{kind}.use")
    cls = reader.host.config_class(entry)
    own = set(settable(cls)) if cls else set()
    service = {name: fields.pop(name) for name in list(fields) if name in SERVICE_KEYS and name not in own}
    part = reader.component(entry, kind, fields, besides=SERVICE_KEYS if kind in ROLES else ())
    reader.record(f"{kind}.use", use)
    return part, service


def _auto_transport(reader: Reader, use: Item, fields: Items) -> Part:
    """`transport: auto` is chosen when the places of the processes are known; it has no keys."""
    for name, item in fields.items():
        raise UsageError(
            f"`transport.{name}` is set while transport is auto",
            where=item.source.where,
            fix="name one: `transport: {use: ...}`",
        )
    reader.record("transport.use", use)
    return Part(kind="transport", name="auto", plugin="", use=Use("auto"), origin="forge-host")


def move_to_service(role: str, service: Items, moved: Items) -> dict[str, Item]:
    """`services.ROLE` with the keys given in the role's own section; the higher layer wins.

    Raises:
        UsageError: the same layer gives two different values.
    """
    result = dict(service)
    for name, item in moved.items():
        old = result.get(name)
        if old is None or item.source.rank > old.source.rank:
            result[name] = overlay(old, item) if old else item
        elif item.source.rank == old.source.rank and item.plain != old.plain:
            raise UsageError(
                f"{role}.{name} is {item.plain} and services.{role}.{name} is {old.plain} ({old.source.where})",
                where=item.source.where, fix="keep one of them",
            )  # fmt: skip
    return result
