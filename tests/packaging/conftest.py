"""Wheels of every distribution of this repository, and environments to try them in."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from distributions import PROJECTS, Site, pip


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of every project, by distribution name."""
    out = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", out, *PROJECTS.values())
    found = {path.name.split("-")[0].replace("_", "-"): path for path in out.glob("*.whl")}
    assert found.keys() == PROJECTS.keys(), "a distribution is not named like its folder"
    return found


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
def host_site(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], others: Path) -> Site:
    """The host's wheel and no plugin. Read only."""
    site = Site(tmp_path_factory.mktemp("host") / "site", others)
    site.install(wheels["forge-host"])
    return site
