"""Tables for people (rich in a terminal, aligned text in a pipe) and JSON for programs.

    print_table(("name", "state"), [("dapo", "discovered")])
    print_json([{"name": "dapo"}])
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def size(path: Path) -> str:
    """A file's size: `115 kB`, `2.1 MB`."""
    count = path.stat().st_size
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under their heads. A terminal gets wrapped cells in its width; a pipe whole cells, for grep."""
    if not rows:
        return
    if sys.stdout.isatty():
        _print_rich(heads, rows)
        return
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for row in (heads, ["-" * width for width in widths], *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, head in enumerate(heads):
        # The first column is what one types next; it must not be broken.
        table.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """`key  value` lines; pairs without a value are left out."""
    shown = [(key, value) for key, value in pairs if value]
    width = max((len(key) for key, _ in shown), default=0)
    for key, value in shown:
        print(f"{key.ljust(width)}  {value}")


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))
