"""The rules of the repository itself: its top level, what each plugin brings, sizes and names of files."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from distributions import PLUGINS, PROJECTS, REPO

TOP_LEVEL = {
    "forge_host", "plugins", "contrib", "tests", "pyproject.toml", "README.md", "LICENSE", "Makefile", "conftest.py",
}  # fmt: skip
#: What runs and builds leave behind; .gitignore names the same.
IGNORED = {"runs", "build", "dist", "__pycache__"}
MAX_LINES = 400
#: Files over the limit, with the reason.
LONG_FILES: dict[str, str] = {}


def texts(*suffixes):
    """Every file of the repository with one of the suffixes, caches and build results left out."""
    for folder, folders, files in os.walk(REPO):
        folders[:] = sorted(f for f in folders if f not in IGNORED and (not f.startswith(".") or f == ".ci"))
        for name in sorted(files):
            path = Path(folder, name)
            if not name.startswith(".") and (path.suffix in suffixes or not suffixes):
                yield path


def project(name):
    return tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())["project"]


def test_top_level():
    assert {p.name for p in REPO.iterdir() if not p.name.startswith(".")} - IGNORED == TOP_LEVEL
    assert (REPO / ".ci" / "run").stat().st_mode & 0o111, ".ci/run is not executable"


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_folder(name):
    folder, table = PROJECTS[name], project(name)
    package = name.replace("-", "_")
    assert table["name"] == name
    assert table["entry-points"]["forge_host.plugins"] == {name.removeprefix("forge-plugin-"): package}
    assert (folder / "README.md").read_text().startswith("# ")
    assert (folder / "src" / package / "py.typed").exists()
    assert list((folder / "tests").glob("test_*.py"))


@pytest.mark.parametrize("name", PROJECTS)
def test_requirements_have_bounds(name):
    """A lower bound that the code needs and an upper bound that was tested."""
    unbounded = [
        line for line in project(name)["dependencies"] if not (">=" in line and "<" in line) and "==" not in line
    ]
    assert not unbounded
    if name != "forge-host":
        assert "forge-host>=0.1,<0.2" in project(name)["dependencies"]


def test_files_are_short():
    lines = {str(p.relative_to(REPO)): len(p.read_text().splitlines()) for p in texts(".py")}
    assert {path for path, count in lines.items() if count > MAX_LINES} == set(LONG_FILES)


def test_test_files_have_unique_names():
    """Pytest imports them by path, people find them by name."""
    seen = {}
    for path in texts(".py"):
        if path.name.startswith("test_"):
            assert path.name not in seen, f"{path} and {seen[path.name]}"
            seen[path.name] = path


def test_no_package_index_is_named():
    """Where packages come from is the business of pip's own configuration; PyTorch's CPU builds are the exception."""
    index = re.compile(r"--(extra-)?index-url|https?://[\w.-]*(py" r"pi|pythonhosted|/simple/)")
    named = {str(p.relative_to(REPO)) for p in texts() if index.search(p.read_text(errors="replace"))}
    assert named - {"tests/packaging/test_repository.py"} <= {
        "contrib/install/install.py",
        "tests/packaging/test_install.py",
    }


def test_nothing_imports_contrib():
    for path in texts(".py"):
        if path.relative_to(REPO).parts[0] in ("forge_host", "plugins"):
            assert not re.search(r"^\s*(import|from) contrib\b", path.read_text(), re.MULTILINE), path
