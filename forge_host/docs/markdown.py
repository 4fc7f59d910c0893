"""Markdown from values: tables and quoted text, with nothing in them taken for markup.

table(("name", "help"), [("batch_size", "prompts per step")])
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from forge_host.plugins.fields import FieldRow, describe

NOTE = "*Made from the code when this site was built.*\n"


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def code(text: str) -> str:
    """A value in code style; nothing for an empty one."""
    return f"`{cell(text)}`".replace("&lt;", "<") if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are Markdown already; columns that are empty everywhere are left out."""
    body = [list(row) for row in rows]
    used = [i for i in range(len(heads)) if i == 0 or any(row[i] for row in body)]
    lines = ["| " + " | ".join(heads[i] for i in used) + " |", "|" + "---|" * len(used)]
    lines += ["| " + " | ".join(row[i] for i in used) + " |" for row in body]
    return "\n".join(lines) + "\n"


def fields_table(rows: Sequence[FieldRow]) -> str:
    """Settings with type, default, bounds, unit and help."""
    return table(
        ("key", "type", "default", "bounds", "unit", "what it does"),
        [(code(r.name), cell(r.type), code(r.default), cell(r.bounds), r.unit, cell(r.help)) for r in rows],
    )


def settings(cls: type) -> str:
    """The fields of an attrs class that a configuration may set."""
    return fields_table(describe(cls)) if attrs.has(cls) else ""


def docstring(thing: Any) -> str:
    """A docstring as it is written, quoted; "" where there is none."""
    text = inspect.getdoc(thing)
    return f"```text\n{text}\n```\n" if text else ""
