"""Trackio: the contracts, and a database that Trackio's own reader understands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from forge_plugin_trackio.tracker import Trackio

from forge_host.api import RunInfo, StepReport
from forge_host.testing import PluginContract, TrackerContract

PROJECT = "forge-host"


@pytest.fixture(autouse=True, scope="module")
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Trackio reads the place of its database once, when it is imported."""
    assert "trackio" not in sys.modules
    os.environ["TRACKIO_DIR"] = str(tmp_path_factory.mktemp("trackio"))


def read(name: str, project: str = PROJECT) -> dict[int, dict[str, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    found: dict[int, dict[str, float]] = {}
    for row in SQLiteStorage.get_logs(project, run=name):
        found.setdefault(int(row["step"]), {}).update(row)
    return found


class TestPlugin(PluginContract):
    plugin = "trackio"


class TestTrackio(TrackerContract):
    ref = "trackio/trackio"

    def logged(self, directory: Path) -> dict[int, dict[str, float]]:
        return read(f"run-{directory.name}")


def test_a_resumed_run_goes_on_and_the_outcome_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunInfo(id="r1", directory=str(tmp_path), config={"model": "smollm2", "path": tmp_path})
    for step in (1, 2):
        tracker = Trackio(project="math")
        with structlog.testing.capture_logs() as logs:
            tracker.start(run)
        tracker.log(StepReport(step=step, policy_version=step, time=1.0, metrics={"reward/mean": step / 4}))
        tracker.finish({"status": "done", "steps": step, "samples": ["secret"]})
        assert logs[0]["show"] == "trackio show --project math"
    found = read("r1", "math")
    assert {step: row["reward/mean"] for step, row in found.items()} == {1: 0.25, 2: 0.5}
    assert found[2]["outcome/status"] == "done" and "secret" not in str(found)
    assert capsys.readouterr().out == ""

    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("math") == ["r1"]
    assert (SQLiteStorage.get_run_config("math", "r1") or {})["path"] == str(tmp_path)


def test_needs_no_network(tmp_path: Path) -> None:
    """With every connection refused, as on a machine without one."""
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
        "from forge_host.api import RunInfo, StepReport\n"
        "from forge_plugin_trackio.tracker import Trackio\n"
        "t = Trackio()\n"
        "t.start(RunInfo(id='alone', directory='.', config={}))\n"
        "t.log(StepReport(step=1, policy_version=1, time=1.0, metrics={'a': 1.0}))\n"
        "t.finish({})\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "print([row['a'] for row in SQLiteStorage.get_logs('forge-host', run='alone')])\n"
    )
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert "[1.0]" in done.stdout.splitlines(), done.stderr
