"""A host with the stand-in components of `fake_rl.py`, and a way to resolve a configuration written in a test."""

from pathlib import Path
from textwrap import dedent

import pytest

from forge_host.config import resolve
from forge_host.plugins import PluginHost

FAKE_RL = str(Path(__file__).parent / "fake_rl.py")
BASE = "model: tiny\nlauncher: here\ntrackers: []\n"


@pytest.fixture(scope="session")
def host():
    return PluginHost.load((), files=(FAKE_RL,), strict=True)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes `c.yaml` (or `name`) into the current directory, a fresh one."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="c.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return name

    return write


@pytest.fixture
def resolved(host, write):
    """`resolved("grpo: {beta: 1}", "training.seed=1")`: text below the base configuration, `--set` texts, options."""

    def run(text="", *overrides, base=BASE, check=True, **options):
        dotted = {key.replace("__", "."): value for key, value in options.items()}
        return resolve(write(base + dedent(text)), overrides=overrides, options=dotted, host=host, check=check)

    return run
