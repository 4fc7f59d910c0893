"""Metrics to Trackio: a database on this machine that `trackio show` draws, or a Hugging Face Space.

tracker = Trackio(project="math")
tracker.start(RunInfo(id="x", directory="runs/x", config={}))
tracker.log(StepReport(step=1, policy_version=1, time=time.time(), metrics={"reward/mean": 0.5}))
tracker.finish({"status": "done"})
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from io import StringIO
from typing import Any

import attrs
import structlog

from forge_host.api import RunInfo, StepReport, field

log = structlog.get_logger()
#: What of the summary tells how a run ended; the rest (samples, paths) is not recorded.
OUTCOME = ("status", "error", "steps", "policy_version", "reward_first", "reward_last", "startup_s", "train_s")


@attrs.define(kw_only=True)
class Trackio:
    """One Trackio run, named like the run directory, so a resumed run goes on in it."""

    project: str = field(default="forge-host", help="Trackio project")
    group: str | None = field(default=None, help="runs of one group are shown together")
    space_id: str | None = field(default=None, help="Hugging Face Space to send to; null keeps it on this machine")
    _run: Any = attrs.field(init=False, default=None)

    def start(self, run: RunInfo) -> None:
        import trackio

        # What Trackio prints would tear the live view apart; it goes into the run's log.
        with contextlib.redirect_stdout(StringIO()) as said:
            self._run = trackio.init(
                project=self.project, name=run.id, group=self.group, space_id=self.space_id, resume="allow",
                # Through JSON, so that an object that Trackio cannot hold becomes its text.
                config=json.loads(json.dumps(run.config, default=str)),
                # The host measures the machine itself, in step with everything else.
                auto_log_cpu=False, auto_log_gpu=False, embed=False,
            )  # fmt: skip
        log.info("trackio", said=" ".join(said.getvalue().split()), show=f"trackio show --project {self.project}")

    def log(self, report: StepReport) -> None:
        values = {name: value for name, value in report.metrics.items() if math.isfinite(value)}
        self._run.log({**values, "policy_version": report.policy_version}, step=report.step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        outcome = {key: summary[key] for key in OUTCOME if summary.get(key) is not None}
        with contextlib.redirect_stdout(StringIO()):
            if outcome:
                run.log({f"outcome/{key}": value for key, value in outcome.items()}, step=int(outcome.get("steps", 0)))
            run.finish()
