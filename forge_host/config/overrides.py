"""The command line's layer: `--set a.b=c` and torchforge's `--trainer.procs 4` become a configuration tree.

    >>> from_command_line(["training.seed=1"], {"trainer.procs": "4"}).plain
    {'training': {'seed': 1}, 'trainer': {'procs': 4}}

A value may hold `=`: only the first one splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_host.config.canonical import SHORT
from forge_host.config.files import parse_value
from forge_host.config.source import Item, Source, tree
from forge_host.errors import UsageError

_TOP = Source("command line", "command line")


def from_command_line(overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> Item:
    """A tree of what `--set` (text `key=value`) and `--key value` options say; later ones win.

    Raises:
        UsageError: no `=`, an empty part in a key, or a key below one that has a plain value.
    """
    root: dict[str, Item] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text} has no value", fix=f"write --set {text}=VALUE")
        _put(root, key.strip(), value.strip(), f"--set {text}")
    for key, value in (options or {}).items():
        shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        _put(root, key, value, f"--{key} {shown}")
    return Item(root, _TOP)


def _put(root: dict[str, Item], key: str, value: Any, where: str) -> None:
    source = Source("command line", where, str(Path.cwd()))
    *parents, last = key.split(".")
    if not all((*parents, last)):
        raise UsageError(f"`{key}` is not a configuration key", where=where, fix="write names joined by dots")
    node = root
    for parent in parents:
        child = node.get(parent)
        if child is None or child.mapping is None:
            child = node[parent] = _below(child, source, where)
        node = child.value
    parsed = parse_value(value, where) if isinstance(value, str) else value
    below = node.get(last)
    if not parents and last in SHORT and isinstance(parsed, str) and below is not None and below.mapping is not None:
        # `--launcher slurm --set launcher.nodes=2`: options follow `--set`, and a name takes no key away.
        node[last] = Item({**below.mapping, SHORT[last]: tree(parsed, source)}, source)
    else:
        node[last] = tree(parsed, source)


def _below(child: Item | None, source: Source, where: str) -> Item:
    if child is None:
        return Item({}, source)
    if isinstance(child.value, str):  # `--set loss=dapo --set loss.clip_high=0.3`
        return Item({"use": child}, source)
    raise UsageError(f"key is below one that {child.source.where} gave a plain value", where=where)
