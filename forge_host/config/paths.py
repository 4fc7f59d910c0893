"""Relative paths in a configuration: looked up beside the file that holds them, then in the current directory.

    find_path("train.jsonl", item.source)     # an absolute Path, or None

Values of the command line are looked up in the current directory. What is found becomes absolute, so that a run's own
`config.resolved.yaml` works from anywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from forge_host.config.source import Item, Source

#: Which dataset component reads a file, by its suffix.
DATA_FILES = {".jsonl": "jsonl", ".json": "hf", ".parquet": "hf", ".csv": "hf"}
COMPRESSED = ".gz"
_FILE_REF = re.compile(r"(?P<file>.+\.py):(?P<attribute>[A-Za-z_]\w*)\Z")


def find_path(text: str, source: Source | None) -> Path | None:
    """The existing file or folder that `text` names, absolute, or None."""
    path = Path(text).expanduser()
    folders = [Path(source.folder)] if source and source.folder else []
    for folder in (*folders, Path.cwd()):
        candidate = folder / path  # an absolute path stands for itself
        if candidate.exists():
            return candidate.absolute()
    return None


def data_reader(text: str) -> str | None:
    """The component that reads a data file of this name, None when the name is not one of a data file."""
    name = Path(text.lower())
    if name.suffix == COMPRESSED:
        return "hf" if name.with_suffix("").suffix in DATA_FILES else None
    return DATA_FILES.get(name.suffix)


def located(item: Item, every: bool) -> Item:
    """The tree with its paths absolute where they exist: `every` text, or only those that can be nothing but a path
    (`./x`, `../x`, `~/x`, `./file.py:Name`, a data file)."""
    value = item.value
    if isinstance(value, dict):
        return Item({name: located(child, every) for name, child in value.items()}, item.source)
    if isinstance(value, list):
        return Item([located(child, every) for child in value], item.source)
    if not isinstance(value, str):
        return item
    if every or value.startswith(("./", "../", "~/")) or data_reader(value):
        found = find_path(value, item.source)
        if found is not None:
            return Item(str(found), item.source)
    return Item(absolute_ref(value, item.source), item.source)


def absolute_ref(ref: str, source: Source | None) -> str:
    """`./rewards.py:MyReward` with the file's absolute path when it exists; any other reference as it is."""
    match = _FILE_REF.match(ref)
    found = find_path(match["file"], source) if match else None
    return f"{found}:{match['attribute']}" if match and found else ref
