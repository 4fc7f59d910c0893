"""Where a configuration value came from, and the tree that carries it through the merge.

A configuration is a tree of `Item`s: a scalar, a list or a mapping of items, each with the `Source` that set it.

    >>> Item(4, Source("file", "c.yaml:12")).source.where
    'c.yaml:12'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

Layer = Literal["default", "preset", "file", "command line"]


@attrs.frozen
class Source:
    """What set a value: `where` reads "default", "algorithm preset grpo", "c.yaml:12" or "--set training.seed=1".

    `overrode` holds what lost against it, strongest first, as (plain value, where) pairs; `folder` is the directory
    that relative paths in a file's values are looked up in first.
    """

    layer: Layer
    where: str
    folder: str | None = None
    rank: int = 0
    overrode: tuple[tuple[Any, str], ...] = ()


DEFAULT = Source("default", "default", rank=-2)


@attrs.frozen
class Item:
    """A scalar, `list[Item]` or `dict[str, Item]` with the source that set it."""

    value: Any
    source: Source

    @property
    def mapping(self) -> dict[str, Item] | None:
        return self.value if isinstance(self.value, dict) else None

    @property
    def plain(self) -> Any:
        """The value as plain data: str, int, float, bool, None, lists and dicts of them."""
        if isinstance(self.value, dict):
            return {key: item.plain for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain for item in self.value]
        return self.value

    def ranked(self, rank: int) -> Item:
        """The same tree with every source at `rank`; a higher rank wins over a lower one."""
        value = self.value
        if isinstance(value, dict):
            value = {key: item.ranked(rank) for key, item in value.items()}
        elif isinstance(value, list):
            value = [item.ranked(rank) for item in value]
        return Item(value, attrs.evolve(self.source, rank=rank))


def walk(item: Item, prefix: str = "") -> Iterator[tuple[str, Item]]:
    """Every leaf with its dotted key; an empty mapping or list is a leaf too."""
    children: Mapping[str, Item] = {}
    if isinstance(item.value, dict):
        children = item.value
    elif isinstance(item.value, list):
        children = {str(index): child for index, child in enumerate(item.value)}
    if not children:
        yield prefix, item
    for key, child in children.items():
        yield from walk(child, f"{prefix}.{key}" if prefix else key)


def tree(value: Any, source: Source) -> Item:
    """Plain data as a tree whose every item has `source`."""
    if isinstance(value, Mapping):
        return Item({str(key): tree(child, source) for key, child in value.items()}, source)
    if isinstance(value, (list, tuple)):
        return Item([tree(child, source) for child in value], source)
    return Item(value, source)
