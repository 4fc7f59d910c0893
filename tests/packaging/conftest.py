"""Wheels of every distribution of this repository, and environments to try them in."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from distributions import PROJECTS, Site, pip


class Wheels:
    """The wheel of each project by distribution name, built when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._built:
            out = self._folder / name
            pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", out, PROJECTS[name])
            (self._built[name],) = out.glob("*.whl")
        return self._built[name]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return Wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to everything installed but forge distributions; `.pth` files (editable installs) are not followed."""
    folder = tmp_path_factory.mktemp("others")
    for place in dict.fromkeys(map(Path, (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))):
        for path in place.iterdir():
            if not path.name.startswith(("forge", "_editable", "__pycache__")) and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="session")
def host_site(tmp_path_factory: pytest.TempPathFactory, wheels: Wheels, others: Path) -> Site:
    """The host's wheel and no plugin. Read only."""
    site = Site(tmp_path_factory.mktemp("host") / "site", others)
    site.install(wheels["forge-host"])
    return site
