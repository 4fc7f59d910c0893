"""Metrics to Trackio: a database on this machine that `trackio show` draws, or a Hugging Face Space.

tracker = Trackio(project="math")
tracker.start(RunInfo(id="x", directory="runs/x", config={}))
tracker.log(StepReport(step=1, policy_version=1, time=time.time(), metrics={"reward/mean": 0.5}))
tracker.finish({"status": "done"})
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from io import StringIO
from typing import Any

import attrs
import structlog

from forge_host.api import RunInfo, StepReport, field, outcome

log = structlog.get_logger()


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
                config=run.plain_config(),
                # The host measures the machine itself, in step with everything else.
                auto_log_cpu=False, auto_log_gpu=False, embed=False,
            )  # fmt: skip
        log.info("trackio", said=" ".join(said.getvalue().split()), show=f"trackio show --project {self.project}")

    def log(self, report: StepReport) -> None:
        self._run.log({**report.finite(), "policy_version": report.policy_version}, step=report.step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        values = {f"outcome/{key}": value for key, value in outcome(summary).items()}
        with contextlib.redirect_stdout(StringIO()):
            if values:
                run.log(values, step=int(values.get("outcome/steps", 0)))
            run.finish()
