"""`jsonl` and `console`: where a run's numbers go when nobody asks for more.

tracker = JsonLines()
tracker.start(RunInfo(id="x", directory="runs/x", config={}))
tracker.log(StepReport(step=1, policy_version=1, time=time.time(), metrics={"reward/mean": 0.5}))
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import attrs
from attrs.validators import ge

from forge_host.api import RunInfo, StepReport, field
from forge_host.report.budget import Budget


@attrs.define(kw_only=True)
class JsonLines:
    """One JSON object a step: `{"step", "policy_version", "time", "metrics"}`, on disk before the next step begins.

    A metric that is not finite is written as null. In a resumed run the lines of steps that are made again are dropped.
    """

    file: str = field(default="metrics.jsonl", help="name of the file in the run directory")
    _path: Path = attrs.field(init=False, default=Path())
    _out: TextIO | None = attrs.field(init=False, default=None)

    def start(self, run: RunInfo) -> None:
        self._path = Path(run.directory) / self.file
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, report: StepReport) -> None:
        if self._out is None:
            self._drop_from(report.step)
            self._out = self._path.open("a", encoding="utf-8", buffering=1)
        metrics = {name: value if math.isfinite(value) else None for name, value in report.metrics.items()}
        line = {"step": report.step, "policy_version": report.policy_version, "time": report.time, "metrics": metrics}
        self._out.write(json.dumps(line, allow_nan=False) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None

    def _drop_from(self, step: int) -> None:
        """Leaves the steps before `step`, and neither later ones nor a line that a crash cut short."""
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] < step:
                    kept.append(line + "\n")
            except (json.JSONDecodeError, KeyError, TypeError):
                continue  # cut short: its step is made again, or was the last one
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(kept), encoding="utf-8")
        os.replace(temporary, self._path)


#: Heading, width, metric (or None for what the console works out), and how a value is written.
_COLUMNS: tuple[tuple[str, int, str | None, str], ...] = (
    ("step", 9, None, ""),
    ("reward", 7, "reward/mean", ".3f"),
    ("KL", 8, "policy/kl", ".4f"),
    ("entropy", 8, "policy/entropy", ".3f"),
    ("tok/s", 7, "tokens/per_s", ",.0f"),
    ("gen", 5, "time/generate_s", "%"),
    ("train", 6, "time/train_s", "%"),
    ("sync", 5, "time/sync_s", "%"),
    ("s/step", 7, "time/step_s", ".1f"),
    ("left", 8, None, ""),
)
#: Of a run without rewards (SFT).
_SFT_COLUMNS: tuple[tuple[str, int, str | None, str], ...] = (
    ("step", 9, None, ""),
    ("loss", 9, "train/loss", ".4f"),
    ("held-out", 10, "eval/loss", ".4f"),
    ("grad", 8, "policy/grad_norm", ".3f"),
    ("lr", 10, "policy/learning_rate", ".2e"),
    ("tok/s", 8, "tokens/per_s", ",.0f"),
    ("s/step", 8, "time/step_s", ".1f"),
    ("left", 9, None, ""),
)
_HEADING_EVERY = 20  # lines


@attrs.define(kw_only=True)
class Console:
    """In a terminal a live view of the run, elsewhere one line a step; both fit 80 columns.

    In the lines gen, train and sync are shares of the step's time; "-" stands for what this run does not measure.
    """

    every: int = field(default=1, help="print a line every so many steps, and the last", unit="steps", validator=ge(1))
    live: bool | None = field(default=None, help="live view instead of lines; null shows it in a terminal only")
    _max_steps: int | None = attrs.field(init=False, default=None)
    _lines: int = attrs.field(init=False, default=0)
    _first: tuple[int, float] | None = attrs.field(init=False, default=None)
    _console: Any = attrs.field(init=False, default=None)
    _view: Any = attrs.field(init=False, default=None)
    _screen: Any = attrs.field(init=False, default=None)
    #: Drawing takes at most this share of a run's time; where steps are fast, some are not drawn.
    _budget: Budget = attrs.field(init=False, factory=lambda: Budget(share=0.0015))

    def start(self, run: RunInfo) -> None:
        from rich.console import Console as RichConsole

        if self._console is None:
            self._console = RichConsole(highlight=False)
        self._max_steps = run.config.get("training", {}).get("max_steps")
        if self._console.is_terminal if self.live is None else self.live:
            import plotext  # noqa: F401 - takes a moment, which the first steps should not pay
            from rich.live import Live

            from forge_host.report.live import LiveView

            self._view = LiveView(name=run.id, max_steps=self._max_steps, directory=run.directory)
            # What others print meanwhile (warnings, "stopping after this step") goes above the view.
            self._screen = Live(self._view, console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._screen.start()

    def log(self, report: StepReport) -> None:
        now = time.monotonic()
        left = self._time_left(report, now)
        if self._first is None:
            self._first = (report.step, now)
        if self._view is not None:
            self._view.add(report, left)
            with self._budget as due:
                if due or report.step == self._max_steps:
                    self._screen.refresh()
            return
        if report.step % self.every and report.step != self._max_steps:
            return
        if self._lines % _HEADING_EVERY == 0:
            self._print("".join(f"{name:>{width}}" for name, width, _, _ in _columns(report)))
        self._lines += 1
        self._print(self._row(report, left))

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = self._view = None

    def _print(self, line: str) -> None:
        self._console.print(line.rstrip(), markup=False, soft_wrap=True)

    def _row(self, report: StepReport, left: str) -> str:
        step = f"{report.step}/{self._max_steps}" if self._max_steps else str(report.step)
        cells = {"step": step, "left": left}
        total = report.metrics.get("time/step_s")
        for name, _, metric, form in _columns(report):
            if metric is None:
                continue
            value = report.metrics.get(metric)
            if form == "%":
                cells[name] = "-" if value is None or not total else f"{value / total:.0%}"
            else:
                cells[name] = "-" if value is None else format(value, form)
        return "".join(f"{cells[name]:>{width}}" for name, width, _, _ in _columns(report))

    def _time_left(self, report: StepReport, now: float) -> str:
        """From the mean time between the reports so far; from the step's own time at the first."""
        if self._max_steps is None:
            return "-"
        if self._first is None or report.step == self._first[0]:
            per_step = report.metrics.get("time/step_s")
        else:
            per_step = (now - self._first[1]) / (report.step - self._first[0])
        return "-" if per_step is None else duration(per_step * max(0, self._max_steps - report.step))


def _columns(report: StepReport) -> tuple[tuple[str, int, str | None, str], ...]:
    return _COLUMNS if "reward/mean" in report.metrics or "train/loss" not in report.metrics else _SFT_COLUMNS


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`, `3d4h`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
