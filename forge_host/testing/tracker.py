"""What a tracker must do: `TrackerContract`.

    from forge_host.testing import TrackerContract

    class TestMyTracker(TrackerContract):
        ref = "mine/mine"

        def logged(self, directory):        # what it wrote, read back: {step: {name: value}}
            ...

A tracker gets a start, finished steps in order, and an end; a metric may be NaN, appear late or go missing; the run may
fail before the first step; a second run in the same process starts from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from forge_host.plugins import PluginHost
from forge_host.types import RunInfo, StepReport, Use

METRICS: tuple[Mapping[str, float], ...] = (
    {"reward/mean": 0.25, "policy/kl": 0.0},
    {"reward/mean": 0.5, "policy/kl": 0.125, "eval/mean": 0.75},
    {"reward/mean": math.nan, "time/step_s": 1e-9},
    {"reward/mean": -1.0, "policy/kl": math.inf, "tokens/generated": 1e9},
)


@lru_cache(maxsize=1)
def _host() -> PluginHost:
    return PluginHost.load()


class TrackerContract:
    """Subclass it, as `class TestMyTracker(TrackerContract)`, set `ref`, and define `logged`.

    Attributes:
        ref: the tracker's reference.
        config: values of its settings.
        tolerance: relative error of a value read back (a file of 32-bit floats has 1e-7).
    """

    ref: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[float] = 0.0

    def logged(self, directory: Path) -> dict[int, dict[str, float]]:
        """Finite values by step as the tracker wrote them below the run directory."""
        raise NotImplementedError("define `logged`, or the contract cannot see what was written")

    def test_every_finite_value_arrives_under_its_step(self, tmp_path: Path) -> None:
        self._run(tmp_path)
        found = self.logged(tmp_path)
        for step, metrics in enumerate(METRICS, 1):
            for name, value in metrics.items():
                if not math.isfinite(value):
                    continue
                assert name in found.get(step, {}), f"{name} of step {step} is missing: {found}"
                assert math.isclose(found[step][name], value, rel_tol=self.tolerance, abs_tol=self.tolerance), (
                    f"{name} of step {step} is {found[step][name]}, not {value}"
                )

    def test_nothing_before_start_but_building(self, tmp_path: Path) -> None:
        """Building a tracker, as `config show` and `--dry-run` may, writes nothing."""
        before = sorted(tmp_path.rglob("*"))
        self._tracker()
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_run_that_fails_before_its_first_step(self, tmp_path: Path) -> None:
        tracker = self._tracker()
        tracker.start(self._info(tmp_path))
        tracker.finish({"status": "failed", "error": "x"})

    def test_finish_twice_or_without_start(self, tmp_path: Path) -> None:
        """The run calls finish once; what cleans up after a failure may call it again."""
        self._tracker().finish({"status": "failed"})
        tracker = self._run(tmp_path)
        tracker.finish({"status": "done"})

    def test_two_runs_in_one_process(self, tmp_path: Path) -> None:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            self._run(tmp_path / name)
        for name in ("first", "second"):
            assert self.logged(tmp_path / name)[1]["reward/mean"] == METRICS[0]["reward/mean"]

    def _run(self, directory: Path) -> Any:
        tracker = self._tracker()
        tracker.start(self._info(directory))
        for step, metrics in enumerate(METRICS, 1):
            tracker.log(StepReport(step=step, policy_version=step, time=1.7e9 + step, metrics=metrics))
        tracker.finish({"status": "done", "error": None, "steps": len(METRICS), "rewards": [0.25], "samples": []})
        return tracker

    def _info(self, directory: Path) -> RunInfo:
        config = {"training": {"max_steps": len(METRICS)}, "rewards": [[{"ref": "math"}, 1.0]], "model": None}
        return RunInfo(id=f"run-{directory.name}", directory=str(directory), config=config)

    def _tracker(self) -> Any:
        return _host().build("tracker", Use(self.ref, dict(self.config)))
