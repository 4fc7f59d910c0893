"""The live view of a run in a terminal: progress, the reward's curve, where the time goes, the newest response.

    view = LiveView(name="quickstart", max_steps=100, directory="runs/quickstart")
    view.add(report)
    rich.print(view)

It only draws: `forge_host.builtin.trackers.Console` feeds it and keeps it on the screen. Readable at 80 columns, and in
a terminal without Unicode. The newest response is read from the end of the run's rollout record.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forge_host.loop.record import CURRENT
from forge_host.types import StepReport

CURVE_HEIGHT = 11  # lines
NUMBERS_WIDTH = 27
TAIL_BYTES = 200_000
MAX_POINTS = 300
#: Parts of a step that follow one another, with the colour of their piece of the bar.
TIMES = (
    ("generate", "time/generate_s", "cyan"), ("reference", "time/ref_s", "magenta"), ("data", "time/data_s", "cyan"),
    ("train", "time/train_s", "green"), ("sync", "time/sync_s", "yellow"), ("host", "time/host_s", "red"),
)  # fmt: skip
#: (label, metric, format) of the numbers beside the curve; those a run does not measure are left out.
NUMBERS = (
    ("reward", "reward/mean", ".3f"), ("held out", "eval/mean", ".3f"), ("loss", "train/loss", ".4f"),
    ("held-out loss", "eval/loss", ".4f"), ("KL", "policy/kl", ".4f"), ("entropy", "policy/entropy", ".3f"),
    ("policy age", "policy_age/max", ".0f"), ("tokens/s", "tokens/per_s", ",.0f"),
    ("useful tokens", "tokens/useful_share", ".0%"), ("not graded", "reward/error_rate", ".0%"),
    ("gradient", "policy/grad_norm", ".3f"), ("s/step", "time/step_s", ".1f"),
)  # fmt: skip


@attrs.define(kw_only=True)
class LiveView:
    """What is known of a run so far; a rich renderable.

    Args:
        max_steps: None when the configuration does not say.
        directory: the run directory, whose rollout record has the newest response.
    """

    name: str
    max_steps: int | None
    directory: str
    metrics: dict[str, float] = attrs.field(factory=dict)  # newest value of each
    curve: list[float] = attrs.field(factory=list)
    step: int = 0
    version: int = 0
    left: str = "-"
    began: float = attrs.field(factory=time.monotonic)
    sample: Mapping[str, Any] | None = None

    def add(self, report: StepReport, left: str = "-") -> None:
        """A finished step; `left` is the time left, in words."""
        self.step, self.version, self.left = report.step, report.policy_version, left
        self.metrics |= report.metrics
        value = report.metrics.get(self.key)
        if value is not None and math.isfinite(value):
            self.curve.append(value)

    @property
    def key(self) -> str:
        """The metric of the curve: the reward, or the loss of supervised training."""
        return "train/loss" if "reward/mean" not in self.metrics and "train/loss" in self.metrics else "reward/mean"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = min(options.max_width, 120)
        yield self._progress(width, options.ascii_only)
        if not self.step:
            yield Text("waiting for the first step", style="dim")
            return
        body = Table.grid(padding=(0, 2))
        body.add_column(width=width - NUMBERS_WIDTH - 2, no_wrap=True, overflow="crop")
        body.add_column(width=NUMBERS_WIDTH)
        body.add_row(self._curve(width - NUMBERS_WIDTH - 2, options.ascii_only), self._numbers())
        yield body
        yield from self._times(width, options.ascii_only)
        self.sample = newest_response(Path(self.directory)) or self.sample
        if self.sample is not None:
            yield self._sample(width)

    def _progress(self, width: int, ascii_only: bool) -> RenderableType:
        done = f"step {self.step}/{self.max_steps}" if self.max_steps else f"step {self.step}"
        words = f" {done}, {self.left} left" if self.step else " starting"
        name = self.name if len(self.name) <= 36 else f"{self.name[:33]}..."
        row = Table.grid()
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        room = max(8, width - len(name) - len(words) - 2)
        if ascii_only:
            filled = round(room * self.step / (self.max_steps or max(self.step, 1)))
            bar: RenderableType = Text("#" * filled + "." * (room - filled))
        else:
            bar = ProgressBar(total=self.max_steps or None, completed=self.step, width=room)
        row.add_row(Text(f"{name} ", style="bold"), bar, Text(words))
        return row

    def _curve(self, width: int, ascii_only: bool) -> RenderableType:
        title = "mean reward" if self.key == "reward/mean" else "training loss"
        if len(self.curve) < 2:
            return Text(f"{title}: the curve begins with the second step", style="dim")
        return Text(text_curve(self.curve, width, CURVE_HEIGHT, title, ascii_only), no_wrap=True)

    def _numbers(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        table.add_column(style="dim", width=14)
        table.add_column(justify="right", width=12)
        for label, metric, form in NUMBERS:
            value = self.metrics.get(metric)
            if value is not None and not (metric == "train/loss" and self.key != metric):  # a policy loss says nothing
                style = "bold red" if not math.isfinite(value) else ""
                table.add_row(label, Text(format(value, form) if math.isfinite(value) else str(value), style=style))
        table.add_row("weights", f"version {self.version}")
        return table

    def _times(self, width: int, ascii_only: bool) -> Iterator[RenderableType]:
        total = self.metrics.get("time/step_s") or 0.0
        if not total:
            return
        shares = ((name, self.metrics.get(metric, 0.0) / total, colour) for name, metric, colour in TIMES)
        parts = [part for part in shares if part[1] >= 0.01]
        bar, words = Text(no_wrap=True), Text.assemble(("step  ", "dim"))
        for name, share, colour in parts:
            mark = name[0] if ascii_only else "\u2588"
            bar.append(mark * max(1, round(share * (width - 6))), style=colour)
            words.append(f"{name} {share:.0%}  ", style=colour)
        bar.truncate(width - 6)
        yield Text.assemble(("time  ", "dim"), bar)
        yield words

    def _sample(self, width: int) -> RenderableType:
        row = self.sample or {}
        reward = row.get("reward")
        parts = ", ".join(f"{k} {v:.3g}" for k, v in (row.get("parts") or {}).items())
        score = "not graded" if reward is None else f"reward {reward:.3g}" + (f" ({parts})" if parts else "")
        table = Table.grid(padding=(0, 1))
        table.add_column(style="dim", width=9)
        table.add_column(width=width - 10)
        table.add_row("prompt", Text(_flat(_prompt(row), width - 12)))
        table.add_row("response", Text(_flat(str(row.get("response") or "(empty)"), 2 * width - 34)))
        table.add_row("", Text(f"{score}, {row.get('num_tokens')} tokens", style="dim"))
        return Group(Text(), table)


def newest_response(directory: Path) -> Mapping[str, Any] | None:
    """The last training response at the end of the rollout record; None when there is none there."""
    file = directory / "rollouts" / CURRENT
    try:
        with open(file, "rb") as record:
            record.seek(0, 2)
            record.seek(max(0, record.tell() - TAIL_BYTES))
            lines = record.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:  # cut at the beginning of what was read, or half written
            continue
        if isinstance(row, dict) and row.get("reason") not in ("probe", "evaluation"):
            return row
    return None


def text_curve(values: Sequence[float], width: int, height: int, title: str, ascii_only: bool = False) -> str:
    """Values over steps as a text plot, uncoloured. Rewards are drawn over 0 to 1 at least."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    size = -(-len(values) // MAX_POINTS)  # means over equal stretches, so that a long run costs no more
    cuts = range(0, len(values), size)
    drawn = [statistics.fmean(values[cut : cut + size]) for cut in cuts]
    plotext.plot([cut + 1 for cut in cuts], drawn, marker="*" if ascii_only else "braille")
    if title == "mean reward":
        plotext.ylim(min(0.0, *values), max(1.0, *values))
    plotext.title(title)
    count = len(values)
    plotext.xticks(sorted({1, count, *range(5, count - count // 16, max(5, count // 6 // 5 * 5))}))
    text = str(plotext.uncolorize(plotext.build()))
    return text.translate(_BOX) if ascii_only else text


#: Frames of a plot in ASCII.
_BOX = str.maketrans("\u250c\u2510\u2514\u2518\u2500\u2502\u2524\u252c\u251c\u2534\u253c", "++++-||+||+")


def _prompt(row: Mapping[str, Any]) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, list):  # a chat: what the user asked last
        return str(prompt[-1].get("content", "")) if prompt and isinstance(prompt[-1], dict) else ""
    return str(prompt or "")


def _flat(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: max(0, limit - 3)] + "..."
