"""Relative paths in a configuration: looked up beside the file that holds them, then in the current directory.

    find_path("train.jsonl", item.source)     # an absolute Path, or None

Values of the command line are looked up in the current directory. What is found becomes absolute, so that a run's own
`config.resolved.yaml` works from anywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from forge_host.config.source import Source

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


def absolute_ref(ref: str, source: Source | None) -> str:
    """`./rewards.py:MyReward` with the file's absolute path when it exists; any other reference as it is."""
    match = _FILE_REF.match(ref)
    found = find_path(match["file"], source) if match else None
    return f"{found}:{match['attribute']}" if match and found else ref
