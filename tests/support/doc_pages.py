"""The hand-written pages and README, and what they hold."""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

REPO = Path(__file__).parents[2]
PAGES = REPO / "forge_host" / "docs" / "pages"
FILES = [REPO / "README.md", *sorted(PAGES.rglob("*.md"))]
FENCE = re.compile(r"^```([\w-]*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- covered by (\S+)::(\w+) -->\s*\Z")


@attrs.frozen
class Block:
    """A fenced code block; `covered` is (file, test) where a comment above it says what runs it."""

    file: Path
    line: int
    language: str
    title: str
    text: str
    covered: tuple[str, str] | None

    def __str__(self) -> str:
        return f"{self.file.relative_to(REPO)}:{self.line}"


def blocks(file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        mark = MARK.search(text[: found.start()])
        line = text.count("\n", 0, found.start()) + 1
        covered = (mark[1], mark[2]) if mark else None
        yield Block(file, line, found[1], found[2] or "", found[3], covered)

