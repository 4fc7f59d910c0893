"""The components table: everything a configuration can name, with its settings.

page()
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

from forge_host.docs.markdown import NOTE, cell, code, fields_table, table
from forge_host.docs.plugins import entries
from forge_host.plugins import Entry
from forge_host.plugins.building import config_class, load_target
from forge_host.plugins.fields import FieldRow, describe, type_name
from forge_host.types import KINDS


def page() -> str:
    """`reference/components.md`."""
    by_kind: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries():
        by_kind[entry.kind].append(entry)
    out = [
        "# Components\n", NOTE,
        "A configuration names a component by its bare name while that is unique, and by `plugin/name` always. "
        "`forge-host components show NAME` prints the same for every plugin that you have installed.\n",
    ]  # fmt: skip
    for kind in KINDS:
        if not by_kind[kind]:
            continue
        out.append(f"## {kind.capitalize()}\n")
        rows = [
            (f"[`{e.ref}`](#{anchor(e)})", cell(e.spec.summary), code(e.origin.distribution), ", ".join(e.spec.needs))
            for e in by_kind[kind]
        ]
        out.append(table(("component", "what it is", "from", "needs"), rows))
        out += [_section(entry) for entry in by_kind[kind]]
    return "\n".join(out)


def anchor(entry: Entry) -> str:
    """The id of a component's heading."""
    return f"{entry.kind}-{entry.ref.replace('/', '-')}"


def _section(entry: Entry) -> str:
    rows = _settings(entry)
    text = fields_table(rows) if rows else "It has no settings.\n"
    return f"### {entry.ref} {{ #{anchor(entry)} }}\n\n{cell(entry.spec.summary)}.\n\n{text}"


def _settings(entry: Entry) -> list[FieldRow]:
    cls = config_class(entry)
    if cls is not None:
        return list(describe(cls))
    target: Any = load_target(entry)
    if not isinstance(target, type):
        return []
    return [
        FieldRow(
            p.name, "anything" if p.annotation is p.empty else type_name(p.annotation),
            "required" if p.default is p.empty else repr(p.default), "", "", "",
        )
        for p in inspect.signature(target).parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
