"""Puts the generated pages into the site; named under `hooks` in mkdocs.yml.

make docs
"""

from __future__ import annotations

from typing import Any

from forge_host.docs import pages


def on_files(files: Any, config: Any) -> Any:
    """Adds every generated page, as if it stood in `pages/`."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files
