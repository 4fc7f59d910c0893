"""Fake installed distributions for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from forge_host.testing.dists import write_dist


class Install(Protocol):
    """Writes the distribution `forge-plugin-<plugin>` with the module `fake_<plugin>`; returns its .dist-info."""

    root: Path

    def __call__(
        self,
        plugin: str,
        source: str,
        *,
        dist: str | None = None,
        module: str | None = None,
        entry_points: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
        editable: bool = False,
        record: bool = True,
    ) -> Path: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Distributions in a folder of this test, importable until it ends; what was imported from it is forgotten then."""
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))

    def make(plugin, source, *, dist=None, module=None, entry_points=None, modules=None, **more):
        module = module or f"fake_{plugin.replace('-', '_')}"
        name = dist or f"forge-plugin-{plugin}"
        return write_dist(root, name, entry_points or {plugin: module}, {module: source, **(modules or {})}, **more)

    make.root = root
    yield make
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
