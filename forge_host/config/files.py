"""YAML in and out: a safe loader that keeps file and line of every value, and a writer whose output it reads back.

Only plain data is accepted (no `!!python/...` tags), a key twice in one mapping is an error, `1e-6` is a number (YAML
1.1 calls it a string), and dates and `1:30` stay strings.

    >>> parse_value("1e-6"), parse_value("{use: math}"), parse_value("a: b")
    (1e-06, {'use': 'math'}, 'a: b')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import yaml

from forge_host.config.source import Item, Source
from forge_host.errors import UsageError

MAX_ITEMS = 100_000  # aliases make a small file expand to any size
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+\Z")
_UNSAFE = re.compile("[^\n -\x7e\xa1-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_PREFIX = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader plus YAML 1.2's floats, without YAML 1.1's dates and base-60 integers."""


class _Dumper(yaml.SafeDumper):
    """Quotes every string that `_Loader` would read as something else; never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # PyYAML reads some characters back as blanks unless they are escaped, which it does in double quotes only.
    return dumper.represent_scalar(_PREFIX + "str", value, style='"' if _UNSAFE.search(value) else None)


_Dumper.add_representer(str, _text)


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_PREFIX + "float", _NUMBER, list("-+.0123456789"))


def load_file(path: Path, where: str | None = None) -> Item:
    """The file's tree; `where` replaces the path in messages and sources.

    Raises:
        UsageError: the file is missing, not UTF-8, or not plain YAML with a mapping at its top.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"configuration file {path} does not exist") from None
    except IsADirectoryError:
        raise UsageError(f"configuration {path} is a folder", fix="name the YAML file in it") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"configuration file is not UTF-8 text ({error.reason})", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"configuration file {path} cannot be read ({error.strerror})") from None
    return load_text(text, where or str(path), folder=str(path.parent))


def load_text(text: str, where: str, folder: str | None = None) -> Item:
    """The tree of a YAML document whose top is a mapping; an empty document is an empty mapping."""
    root = _compose(text, where)
    top = Source("file", where, folder)
    if root is None:
        return Item({}, top)
    item = _Builder(where, folder).build(root, ())
    if item.value is None:
        return Item({}, top)
    if not isinstance(item.value, dict):
        raise UsageError("a configuration is a mapping of sections", where=item.source.where)
    return Item(item.value, top)


def parse_value(text: str, where: str = "command line") -> Any:
    """One value of the command line: a YAML scalar, or YAML in braces, brackets or quotes. Empty text is ""."""
    if text[:1] in tuple("{['\""):
        root = _compose(text, where)
        assert root is not None  # the text is not empty
        return _Builder(where, None).build(root, ()).plain
    if not text:
        return ""
    resolver = _Loader("")
    tag = resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _scalar(yaml.ScalarNode(tag, text), where)


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as block YAML in the given key order; `load_text` gives equal data back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=100)


def _compose(text: str, where: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = " ".join(part for part in (error.context, error.problem) if part)
        fix = "indent with spaces" if "\\t" in problem else None
        raise UsageError(f"not valid YAML ({problem})", where=place, fix=fix) from None
    except yaml.YAMLError as error:
        raise UsageError(f"not valid YAML ({' '.join(str(error).split())})", where=where) from None


def _scalar(node: yaml.ScalarNode, where: str) -> Any:
    kind = node.tag.removeprefix(_PREFIX)
    if kind in ("str", "timestamp", "value", "merge") or (kind in ("int", "float") and ":" in node.value):
        return node.value
    if kind not in ("int", "float", "bool", "null"):
        raise UsageError(f"YAML tag {node.tag} is not allowed", where=where, fix="write plain values only")
    try:
        if kind == "float" and _NUMBER.match(node.value):
            return float(node.value)
        return _Loader("").construct_object(node)
    except (ValueError, KeyError, yaml.YAMLError):
        raise UsageError(f"{node.value!r} is not a YAML {kind}", where=where) from None


class _Builder:
    """Turns composed nodes into items."""

    def __init__(self, where: str, folder: str | None) -> None:
        self.where, self.folder, self.count = where, folder, 0

    def source(self, node: yaml.Node) -> Source:
        return Source("file", f"{self.where}:{node.start_mark.line + 1}", self.folder)

    def build(self, node: yaml.Node, parents: tuple[int, ...]) -> Item:
        source = self.source(node)
        self.count += 1
        if self.count > MAX_ITEMS or id(node) in parents:
            raise UsageError("aliases expand to too many values", where=source.where)
        inside = (*parents, id(node))
        if isinstance(node, yaml.ScalarNode):
            return Item(_scalar(node, source.where), source)
        if node.tag not in (_PREFIX + "map", _PREFIX + "seq"):
            raise UsageError(f"YAML tag {node.tag} is not allowed", where=source.where, fix="write plain values only")
        if isinstance(node, yaml.SequenceNode):
            return Item([self.build(child, inside) for child in node.value], source)
        assert isinstance(node, yaml.MappingNode)
        return Item(self.mapping(node, inside), source)

    def mapping(self, node: yaml.MappingNode, parents: tuple[int, ...]) -> dict[str, Item]:
        merged: dict[str, Item] = {}
        own: dict[str, Item] = {}
        for key_node, value_node in node.value:
            place = f"{self.where}:{key_node.start_mark.line + 1}"
            if key_node.tag == _PREFIX + "merge":
                parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for part in reversed(parts):
                    merged.update(self.build(part, parents).mapping or {})
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise UsageError("a key is a single word", where=place)
            key = key_node.value
            if key in own:
                raise UsageError(f"key `{key}` stands twice in one mapping", where=place, fix="keep one of them")
            item = self.build(value_node, parents)
            # A block value starts on the next line; people look for the line of its key.
            own[key] = Item(item.value, attrs.evolve(item.source, where=place))
        return {**merged, **own}
