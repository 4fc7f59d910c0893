"""Merges layers: a higher one wins key by key, and every winner remembers what it overrode.

Mappings merge, lists and scalars replace. When a higher layer chooses another component for a section, the lower
layer's component keys are dropped and a note says so, since they belong to the component that is gone.

    merge([files, command_line])  # -> (tree, notes)
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from forge_host.config.canonical import DEFAULTS, ROLES, SELECTORS, SERVICE_KEYS, base_name, same_ref
from forge_host.config.schema import DatasetConfig
from forge_host.config.source import DEFAULT, Item, walk
from forge_host.errors import UsageError

#: The component a section has when no layer chooses one.
DEFAULT_REFS = {
    "algorithm": DEFAULTS.algorithm, "dataset": DEFAULTS.dataset.path, "generator": DEFAULTS.generator.use,
    "trainer": DEFAULTS.trainer.use, "transport": DEFAULTS.transport.use, "launcher": DEFAULTS.launcher.use,
}  # fmt: skip
#: Keys of a section that belong to the host and survive a change of component.
GENERAL = {
    "dataset": frozenset(f.name for f in attrs.fields(DatasetConfig)) - {"path", "extra"},
    **{role: SERVICE_KEYS for role in ROLES},
}


def merge(layers: Sequence[Item]) -> tuple[Item, list[str]]:
    """All layers (canonical, lowest first) as one tree, with notes about dropped keys."""
    notes: list[str] = []
    tree = Item({}, DEFAULT)
    for rank, layer in enumerate(layers):
        tree = _merge(tree, layer.ranked(rank), "", notes)
    return tree, notes


def overlay(low: Item, high: Item, key: str = "") -> Item:
    """`high` over `low`, key by key; what loses is remembered. `key` names a section that chooses a component."""
    return _merge(low, high, key, [])


def _merge(low: Item, high: Item, key: str, notes: list[str]) -> Item:
    below, above = low.mapping, high.mapping
    if above is not None and isinstance(low.value, list) and above and all(name.isdigit() for name in above):
        return _merge_list(low, above, key, notes)
    if below is None or above is None:
        lost = (*high.source.overrode, (low.plain, low.source.where), *low.source.overrode)
        return Item(high.value, attrs.evolve(high.source, overrode=lost))
    if key in SELECTORS:
        below, above = _select(below, above, key, notes)
    merged = dict(below)
    for name, item in above.items():
        place = f"{key}.{name}" if key else name
        merged[name] = _merge(below[name], item, place, notes) if name in below else item
    return Item(merged, high.source)


def _merge_list(low: Item, above: dict[str, Item], key: str, notes: list[str]) -> Item:
    """`rewards.0.weight=2` on the command line changes one entry of a list."""
    items = list(low.value)
    for name, item in above.items():
        if int(name) >= len(items):
            raise UsageError(
                f"{key} has {len(items)} entries, numbered from 0, so {key}.{name} is none", where=item.source.where
            )
        old = items[int(name)]
        if isinstance(old.value, str) and item.mapping is not None:
            old = Item({"use": old}, old.source)
        items[int(name)] = _merge(old, item, f"{key}.{name}", notes)
    return Item(items, low.source)


def _select(
    below: dict[str, Item], above: dict[str, Item], key: str, notes: list[str]
) -> tuple[dict[str, Item], dict[str, Item]]:
    """Both sides of a component's section, with what belongs to another component than the higher one's left out."""
    selector = SELECTORS[key]
    old, new = below.get(selector), above.get(selector)
    old_name = str(old.plain) if old else DEFAULT_REFS.get(key, "")
    if new is None:
        return below, above
    if same_ref(old_name, str(new.plain)):
        qualified = old is not None and "/" in old_name
        return below, {name: item for name, item in above.items() if name != selector} if qualified else above
    general = GENERAL.get(key, frozenset())
    gone = [name for name in below if name != selector and name not in general]
    if gone:
        owner = f" of {old_name}" if old_name else ""
        section = base_name(old_name) if key == "algorithm" else key
        names = ", ".join(f"{section}.{name} ({next(walk(below[name]))[1].source.where})" for name in gone)
        changed = key if key == "algorithm" else f"{key}.{selector}"
        notes.append(f"{changed} is now {new.plain}, so {names}{owner} no longer apply")
    return {name: item for name, item in below.items() if name not in gone}, above
