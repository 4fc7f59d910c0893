"""Metrics to Weights & Biases; offline, and saying so, when there is no key or no answer.

tracker = WeightsAndBiases(project="math", mode="offline")
tracker.start(RunInfo(id="x", directory="runs/x", config={}))
tracker.log(StepReport(step=1, policy_version=1, time=time.time(), metrics={"reward/mean": 0.5}))
tracker.finish({"status": "done"})
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
import structlog
from attrs.validators import gt, in_

from forge_host.api import RunInfo, StepReport, field, outcome

log = structlog.get_logger()


@attrs.define(kw_only=True)
class WeightsAndBiases:
    """One W&B run; its name and id are the run directory's name, so a resumed run goes on in it."""

    project: str = field(default="forge-host", help="W&B project")
    entity: str | None = field(default=None, help="W&B user or team; null is the key's own")
    group: str | None = field(default=None, help="runs of one group are shown together")
    tags: tuple[str, ...] = field(default=(), converter=tuple, help="tags of the run")
    mode: str = field(
        default="auto", help="auto (online with a key, else offline), online, offline or disabled",
        validator=in_(("auto", "online", "offline", "disabled")),
    )  # fmt: skip
    timeout_s: float = field(default=30.0, help="the server must answer by then", unit="s", validator=gt(0))
    _run: Any = attrs.field(init=False, default=None)

    def start(self, run: RunInfo) -> None:
        mode = self._mode()
        if mode == "online":
            import wandb.errors

            try:
                self._open(run, mode)
                return
            except wandb.errors.Error as error:
                if self.mode == "online":
                    raise
                log.warning("W&B is not reached; this run is recorded offline", error=" ".join(str(error).split()))
                # W&B holds the id of the failed one until the process ends.
                self._open(run, "offline", id=f"{run.id}-offline")
        else:
            self._open(run, mode)
        if self._run.settings.mode == "offline":
            folder = os.path.dirname(self._run.dir)
            log.warning("W&B is offline", folder=folder, upload=f"wandb sync {folder}")

    def log(self, report: StepReport) -> None:
        self._run.log({**report.finite(), "policy_version": report.policy_version}, step=report.step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        for key, value in outcome(summary).items():
            run.summary[key] = value
        run.finish(exit_code=0 if summary.get("status") == "done" else 1)

    def _open(self, run: RunInfo, mode: str, id: str | None = None) -> None:
        import wandb

        # W&B reads the environment once in a process; what it says now is what the user asked of this run.
        address: dict[str, Any] = {"base_url": url} if (url := os.environ.get("WANDB_BASE_URL")) else {}
        chosen: Any = mode
        self._run = wandb.init(
            project=self.project, entity=self.entity, group=self.group, tags=list(self.tags), name=run.id,
            id=id or run.id, resume="allow" if mode == "online" else None, dir=run.directory, mode=chosen,
            reinit="create_new", config=run.plain_config(),
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, init_timeout=self.timeout_s,
                **address,
            ),
        )  # fmt: skip

    def _mode(self) -> str:
        if self.mode != "auto":
            return self.mode
        chosen = os.environ.get("WANDB_MODE")
        if chosen:
            return chosen
        if has_key():
            return "online"
        log.warning("no W&B key (WANDB_API_KEY or `wandb login`)")
        return "offline"


def has_key() -> bool:
    """Whether W&B would find an API key: in the environment, or for its host in the user's netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    import wandb

    host = urlsplit(os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
