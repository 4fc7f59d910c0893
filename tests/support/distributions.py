"""The distributions of this repository, and folders in which only chosen ones are installed; for packaging tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PROJECTS = {
    path.parent.name if path.parent != REPO else "forge-host": path.parent
    for path in [REPO / "pyproject.toml", *sorted(REPO.glob("*/*/pyproject.toml"))]
}
PLUGINS = [name for name, folder in PROJECTS.items() if folder.parent.name == "plugins"]


class Site:
    """A folder with some wheels in it, seen by a Python that sees no other forge distribution.

    The environment's own site-packages holds editable installs of everything here. `python -S` leaves it out; its other
    packages (attrs, pluggy, torch, ...) are linked into `others`.
    """

    def __init__(self, folder: Path, others: Path) -> None:
        self.folder, self.others = folder, others
        folder.mkdir(parents=True, exist_ok=True)

    def install(self, *packages: Path) -> None:
        pip("install", "--no-deps", "--no-index", "--no-build-isolation", "--target", self.folder, *packages)

    def python(
        self, *arguments: str | Path, timeout: int = 120, input: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -S` with the arguments and this standard input, outside the repository."""
        # Variables of the caller that change what is loaded must not leak in.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FORGE_", "PYTHON"))}
        path = f"{self.folder}{os.pathsep}{self.others}"
        return subprocess.run(
            [sys.executable, "-S", *map(str, arguments)],
            env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env},
            cwd=self.folder,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def forge_host(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the console script that the host's wheel installed."""
        return self.python(self.folder / "bin" / "forge-host", *arguments, **env)


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
