"""The site builds without a warning, loads nothing from elsewhere, and each of its links leads somewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from doc_pages import PAGES

if not os.environ.get("CI"):  # there it must be installed
    pytest.importorskip("material", reason="mkdocs-material is not installed: make setup")


class Links(HTMLParser):
    """Addresses and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.add(str(found["id"]))
        if tag in ("a", "link") and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.links.append(str(found["src"]))
            self.loads.append(str(found["src"]))
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "icon") and found.get("href"):
            self.loads.append(str(found["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    config = str(PAGES.parent / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return out


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {file: Links(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    assert len(pages) > 15
    checked = 0
    for file, page in pages.items():
        assert not [src for src in page.loads if urlsplit(src).scheme], file
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or file.name == "404.html":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{file.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{file.name}: {link}"
                checked += 1
    assert checked > 100
    assert re.search(r"forge-host rollouts", (site / "reference" / "cli.html").read_text())
