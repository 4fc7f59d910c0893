"""The built-in trackers: lines on disk that survive a resume, and a table that fits 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_host.api import RunInfo, StepReport, Tracker, outcome
from forge_host.builtin.trackers import Console, JsonLines, duration
from forge_host.testing import TrackerContract

METRICS = {
    "reward/mean": 0.53125, "policy/kl": 0.00123, "policy/entropy": 1.25, "tokens/per_s": 1248.4,
    "time/generate_s": 5.2, "time/train_s": 4.0, "time/sync_s": 0.3, "time/step_s": 10.0,
}  # fmt: skip


def run_info(folder: Path, max_steps: int = 100) -> RunInfo:
    return RunInfo(id="r", directory=str(folder), config={"training": {"max_steps": max_steps}})


def report(step: int, **metrics: float) -> StepReport:
    return StepReport(step=step, policy_version=step, time=1.5, metrics=metrics or METRICS)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_jsonl_writes_each_step_at_once(tmp_path: Path) -> None:
    tracker = JsonLines()
    assert isinstance(tracker, Tracker)
    tracker.start(run_info(tmp_path))
    tracker.log(report(1, a=1.0, b=float("nan"), c=float("inf")))
    assert lines(tmp_path) == [
        {"step": 1, "policy_version": 1, "time": 1.5, "metrics": {"a": 1.0, "b": None, "c": None}}
    ]
    tracker.log(report(2, a=2.0))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    tracker.finish({})


def test_what_a_service_on_a_network_can_hold(tmp_path: Path) -> None:
    assert report(1, a=1.0, b=float("nan"), c=float("inf")).finite() == {"a": 1.0}
    assert RunInfo(id="r", directory="", config={"path": tmp_path, "n": (1,)}).plain_config() == {
        "path": str(tmp_path), "n": [1],
    }  # fmt: skip
    summary = {"status": "done", "error": None, "samples": ["secret"], "steps": 3}
    assert outcome(summary) == {"status": "done", "steps": 3}


def test_jsonl_resume_drops_what_is_made_again(tmp_path: Path) -> None:
    first = JsonLines()
    first.start(run_info(tmp_path))
    for step in (1, 2, 3, 4):
        first.log(report(step, a=1.0))
    first.finish({})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "pol')  # the process was killed here
    second = JsonLines()
    second.start(run_info(tmp_path))
    for step in (3, 4):
        second.log(report(step, a=2.0))
    second.finish({})
    assert [(line["step"], line["metrics"]["a"]) for line in lines(tmp_path)] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_console_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Console()
    assert isinstance(tracker, Tracker)
    tracker.start(run_info(tmp_path))
    for step in range(1, 23):
        tracker.log(report(step))
    tracker.finish({})
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 24 and all(len(line) <= 80 for line in out)
    assert out[0].split() == ["step", "reward", "KL", "entropy", "tok/s", "gen", "train", "sync", "s/step", "left"]
    assert out[1].split() == ["1/100", "0.531", "0.0012", "1.250", "1,248", "52%", "40%", "3%", "10.0", "16m30s"]
    assert out[21] == out[0]  # repeated for the reader


def test_console_shows_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Console(every=2)
    tracker.start(RunInfo(id="r", directory=str(tmp_path), config={}))
    for step in (1, 2, 3):
        tracker.log(report(step, **{"reward/mean": 0.5, "time/step_s": 2.0}))
    tracker.finish({})
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 and out[1].split() == ["2", "0.500", "-", "-", "-", "-", "-", "-", "2.0", "-"]


def test_console_prints_the_last_step_whatever_every_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Console(every=10)
    tracker.start(run_info(tmp_path, max_steps=3))
    for step in (1, 2, 3):
        tracker.log(report(step))
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "3/3"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (45.4, "45s"), (200, "3m20s"), (7500, "2h05m"), (273_600, "3d4h")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_console_shows_losses_of_a_run_without_rewards(tmp_path, capsys) -> None:
    console = Console(live=False)
    console.start(RunInfo(id="x", directory=str(tmp_path), config={"training": {"max_steps": 2}}))
    console.log(StepReport(step=1, policy_version=1, time=0.0, metrics={"train/loss": 1.25, "time/step_s": 2.0}))
    console.log(StepReport(step=2, policy_version=2, time=0.0, metrics={"train/loss": 1.0, "eval/loss": 1.5}))
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["step", "loss", "held-out", "grad", "lr", "tok/s", "s/step", "left"]
    assert first.split()[:3] == ["1/2", "1.2500", "-"] and second.split()[:3] == ["2/2", "1.0000", "1.5000"]
    assert max(map(len, (heading, first, second))) <= 80


class TestJsonLines(TrackerContract):
    ref = "builtin/jsonl"

    def logged(self, directory: Path) -> dict[int, dict[str, float]]:
        rows = {line["step"]: line["metrics"] for line in lines(directory)}
        return {step: {k: v for k, v in metrics.items() if v is not None} for step, metrics in rows.items()}
