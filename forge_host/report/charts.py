"""The charts of a report as SVG that follows the page's colours, light and dark (matplotlib).

    for chart in charts([run]):
        chart.title, chart.svg, chart.wide

Only what a run measured becomes a chart; there are no empty ones. Runs longer than MAX_POINTS steps are drawn as means
over equal stretches of steps, so that a page stays small.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

import attrs

from forge_host.report.reference import Reference
from forge_host.report.rundata import Run

MAX_POINTS = 400
MAX_SERIES = 8
#: Stand-ins that the page's style sheet gives their colours: series, ink, muted ink, grid.
COLOURS = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06", "#0a0b07", "#0a0b08")
INK, MUTED, GRID = "#0a0b11", "#0a0b12", "#0a0b13"
VARIABLES = {
    **{colour: f"var(--s{i})" for i, colour in enumerate(COLOURS)},
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
}
STYLES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "forge-host", "font.size": 9, "font.family": "sans-serif",
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "text.color": INK,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "xtick.major.size": 0, "ytick.major.size": 0, "lines.linewidth": 1.6, "lines.solid_capstyle": "round",
    "legend.frameon": False, "legend.fontsize": 8.5, "legend.handlelength": 1.4, "figure.facecolor": "none",
    "axes.facecolor": "none", "savefig.facecolor": "none",
}  # fmt: skip
#: Parts of a step's time that follow one another, in order.
TIMES = {
    "data": "time/data_s", "generate": "time/generate_s", "reference": "time/ref_s", "train": "time/train_s",
    "sync": "time/sync_s", "host": "time/host_s",
}  # fmt: skip


@attrs.frozen
class Chart:
    """`caption` says what is drawn and in which unit; one with a `wide` drawing takes two columns where there are."""

    title: str
    caption: str
    svg: str
    wide: str = ""


@attrs.frozen
class Line:
    """A metric of a chart with its legend entry."""

    name: str
    legend: str


@attrs.frozen
class Spec:
    """A line chart from `bottom` (None: as the values are); `reference`: the metric whose expected curve it shows."""

    title: str
    caption: str
    lines: Callable[[Run], list[Line]]
    bottom: float | None = 0.0
    reference: str = ""


def _fixed(**names: str) -> Callable[[Run], list[Line]]:
    """Metrics by legend entry; underscores of an entry are spaces."""
    return lambda run: [Line(name, legend.replace("_", " ")) for legend, name in names.items()]


def _parts(run: Run) -> list[Line]:
    names = [n for n in run.names if n.startswith("reward/") and n.endswith("/mean") and n.count("/") > 1]
    return [Line(n, n.removeprefix("reward/").removesuffix("/mean")) for n in names]


def _loss(run: Run) -> list[Line]:
    """Of supervised training only: a policy loss says nothing about progress."""
    if run.series("reward/mean")[1]:
        return []
    return [Line("train/loss", "training"), Line("eval/loss", "held out")]


def _throughput(run: Run) -> list[Line]:
    """Supervised training generates nothing."""
    if not run.series("reward/mean")[1]:
        return [Line("tokens/per_s", "trained")]
    return [Line("tokens/per_s", "generated"), Line("tokens/train_per_s", "trained")]


def _memory(run: Run) -> list[Line]:
    gpus = [Line(n, n.split("/")[1]) for n in run.names if n.startswith("system/gpu") and n.endswith("memory_used_gb")]
    host = [("rss_gb", "processes"), ("memory_used_gb", "machine"), ("shm_used_gb", "/dev/shm")]
    return [*(Line(f"system/{name}", legend) for name, legend in host), *gpus]


def _load(run: Run) -> list[Line]:
    gpus = [Line(n, n.split("/")[1]) for n in run.names if n.startswith("system/gpu") and n.endswith("utilisation")]
    return [Line("system/cpu_share", "processors"), *gpus]


SPECS = (
    Spec("Loss", "nats a token, lower is better", _loss, bottom=None, reference="train/loss"),
    Spec("Reward parts", "mean of each part", _parts, bottom=None),
    Spec("KL to the reference", "nats a token", _fixed(kl="policy/kl")),
    Spec("Trainer against generator", "KL, nats a token", _fixed(kl="policy/generator_kl")),
    Spec("Entropy", "nats a token", _fixed(entropy="policy/entropy")),
    Spec("Clipped tokens", "share of tokens", _fixed(low="policy/clip_low", high="policy/clip_high")),
    Spec("Importance correction", "share of tokens", _fixed(bounded="correction/clipped", masked="correction/masked")),
    Spec("Response length", "mean, tokens", _fixed(length="response/length_mean", held_out="eval/length_mean")),
    Spec("Responses and groups", "share", _fixed(
        cut_at_max_tokens="response/truncated_share", no_variance="reward/zero_variance_share",
        not_graded="reward/error_rate")),
    Spec("Policy age", "versions behind", _fixed(oldest="policy_age/max", mean="policy_age/mean")),
    Spec("Gradient norm", "before clipping", _fixed(norm="policy/grad_norm")),
    Spec("Throughput", "tokens a second", _throughput),
    Spec("Memory", "GB", _memory),
    Spec("Load", "share of the time busy", _load),
)  # fmt: skip


def charts(runs: Sequence[Run], reference: Reference | None = None) -> Iterator[Chart]:
    """Reward first, then every chart that any of the runs has values for.

    Args:
        runs: overlaid, the i-th in the page's colour i; up to MAX_SERIES.
        reference: the expected curve, drawn behind its metric.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        if any(run.series("reward/mean")[1] for run in runs):
            yield _reward(runs, reference if reference and reference.metric == "reward/mean" else None)
        for spec in SPECS:
            behind = reference if reference and spec.reference == reference.metric else None
            chart = None if _flat(runs, spec) else _lines(runs, spec, behind)
            if chart is not None:
                yield chart
        chart = _times(runs)
        if chart is not None:
            yield chart


def constants(runs: Sequence[Run]) -> list[str]:
    """What `charts` leaves out because no run's values change: `Policy age: oldest 0, mean 0 (versions behind)`."""
    return [
        f"{spec.title}: {', '.join(f'{legend} {value:.4g}' for legend, value in flat.items())} ({spec.caption})"
        for spec in SPECS
        if (flat := _flat(runs, spec))
    ]


def unmeasured(run: Run) -> list[str]:
    """What people look for in a reinforcement-learning run and this one did not measure, and what turns it on."""
    if not run.series("reward/mean")[1]:
        return []
    wanted = {
        "policy/kl": f"KL to the reference: measured with {run.algorithm_key('beta')} above 0",
        "policy/entropy": "Entropy: measured with training.entropy_coef above 0",
    }
    absent = [text for name, text in wanted.items() if not run.series(name, finite=False)[1]]
    if not run.evaluation("eval/mean")[1] and not run.evaluation("eval/greedy/mean")[1]:
        absent.append("Reward on held-out prompts: measured with evaluation.interval above 0")
    return absent


def _flat(runs: Sequence[Run], spec: Spec) -> dict[str, float]:
    """The constant of each line, when every line of every run has the same one over two or more steps."""
    values: dict[str, set[float]] = {}
    for run in runs:
        for line in spec.lines(run):
            found = run.series(line.name)[1]
            if len(found) == 1:
                return {}
            values.setdefault(line.legend, set()).update(found)
    return {k: v.pop() for k, v in values.items() if v} if all(len(v) <= 1 for v in values.values()) else {}


def thin(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most MAX_POINTS points: means over equal stretches."""
    if len(steps) <= MAX_POINTS:
        return list(steps), list(values)
    size = math.ceil(len(steps) / MAX_POINTS)
    cuts = range(0, len(steps), size)
    return [statistics.fmean(steps[c : c + size]) for c in cuts], [statistics.fmean(values[c : c + size]) for c in cuts]


def _reward(runs: Sequence[Run], reference: Reference | None) -> Chart:
    narrow, caption = _draw_reward(runs, reference, wide=False)
    return Chart("Reward", caption, narrow, _draw_reward(runs, reference, wide=True)[0])


def _draw_reward(runs: Sequence[Run], reference: Reference | None, wide: bool) -> tuple[str, str]:
    figure, axes = _figure(wide)
    caption = "mean of the graded responses; band: 95% interval of the mean"
    if reference is not None:
        caption += _draw_expected(axes, reference)
    many = len(runs) > 1
    styles: dict[str, dict[str, Any]] = {}
    for run, colour in zip(runs, COLOURS, strict=False):
        steps, mean = run.series("reward/mean")
        if not steps:
            continue
        half = _half_widths(run, steps)
        x, y = thin(steps, mean)
        if half is not None:
            h = thin(steps, half)[1]
            low, high = ([v + sign * w for v, w in zip(y, h, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, y, color=colour, label=None if many else "reward", **_dot(x))
        for number, (name, legend) in enumerate((("eval/mean", "held out"), ("eval/greedy/mean", "held out, greedy"))):
            at, values = run.evaluation(name)
            if at:
                errors = [_value_at(run, name.replace("mean", "ci95"), step) for step in at]
                ink = colour if many else COLOURS[number + 1]
                axes.errorbar(
                    at, values, yerr=errors, color=ink, marker="os"[number], markersize=4, linewidth=1, capsize=2,
                    linestyle=STYLES[number + 1], label=None if many else legend,
                )  # fmt: skip
                styles[legend] = {"linestyle": STYLES[number + 1], "marker": "os"[number], "markersize": 4}
                if "held-out" not in caption:
                    caption += "; points: held-out prompts with their 95% interval"
    _legend_of_styles(axes, {"training": {}, **styles} if many and styles else {})
    axes.margins(y=0.08)
    return _finish(figure, axes), caption


def _draw_expected(axes: Any, reference: Reference) -> str:
    """The band behind the lines; returns what the caption says of it."""
    axes.fill_between(reference.centres, reference.low, reference.high, color=MUTED, alpha=0.16, linewidth=0)
    axes.plot([], [], color=MUTED, alpha=0.4, linewidth=6, label="expected")
    return f"; grey: expected mean over {reference.window} steps"


def _value_at(run: Run, name: str, step: int) -> float:
    """A metric at a step, 0 where there is none; step 0 is the evaluation before the run."""
    at, values = run.evaluation(name)
    return values[at.index(step)] if step in at else 0.0


def _half_widths(run: Run, steps: Sequence[int]) -> list[float] | None:
    """1.96 standard errors of each step's mean reward; None when the spread or the number is not known."""
    std = dict(zip(*run.series("reward/std"), strict=True))
    number = dict(zip(*run.series("reward/num_graded"), strict=True))
    batch, samples = run.setting("training.batch_size"), run.setting(run.algorithm_key("n_samples"))
    planned = batch * samples if isinstance(batch, int) and isinstance(samples, int) else 0
    if not std or not (number or planned):
        return None
    return [1.96 * std.get(s, 0.0) / math.sqrt(max(number.get(s, planned), 1)) for s in steps]


def _lines(runs: Sequence[Run], spec: Spec, reference: Reference | None = None) -> Chart | None:
    found: list[tuple[str, int, Line, list[int], list[float]]] = []
    numbers: dict[str, int] = {}  # a line looks the same in every run
    broken: set[int] = set()
    for run, colour in zip(runs, COLOURS, strict=False):
        for line in spec.lines(run):
            steps, values = run.series(line.name)
            broken |= set(run.series(line.name, finite=False)[0]) - set(steps)
            if steps and numbers.setdefault(line.legend, len(numbers)) < MAX_SERIES:
                found.append((colour, numbers[line.legend], line, steps, values))
    if not found:
        return None
    figure, axes = _figure()
    caption = spec.caption + (_draw_expected(axes, reference) if reference is not None else "")
    if len(numbers) > MAX_SERIES:
        caption += f"; the first {MAX_SERIES} of {len(numbers)}"
    if broken:
        caption += f"; not a number at {len(broken)} steps, first at step {min(broken)}"
    many, several = len(runs) > 1, len(numbers) > 1
    for colour, number, line, steps, values in found:
        x, y = thin(steps, values)
        axes.plot(
            x, y, color=colour if many else COLOURS[number], linestyle=STYLES[number % len(STYLES)] if many else "-",
            label=line.legend if several and not many else None, **_dot(x),
        )  # fmt: skip
    if several and many:
        _legend_of_styles(axes, {line.legend: {"linestyle": STYLES[n % len(STYLES)]} for _, n, line, _, _ in found})
    if spec.bottom is not None:
        height = max(max(values) for *_, values in found) - spec.bottom
        axes.set_ylim(spec.bottom, spec.bottom + (1.05 * height if height > 0 else 1.0))
    first, last = (end(row["step"] for run in runs for row in run.rows) for end in (min, max))
    if last > first:  # the same steps in every chart, so that a line that stops early is seen to
        axes.set_xlim(first - 0.04 * (last - first), last + 0.04 * (last - first))
    return Chart(spec.title, caption, _finish(figure, axes))


def _times(runs: Sequence[Run]) -> Chart | None:
    """Where a step's time goes: over the steps for one run, the mean step as a bar each for several."""
    shown = [run for run in runs if run.series("time/step_s")[1]]
    if not shown:
        return None
    caption = "seconds, by what the trainer waits for" if len(shown) == 1 else "seconds, mean over the run"
    return Chart("Time of a step", caption, _draw_times(shown, wide=False), _draw_times(shown, wide=True))


def _draw_times(shown: Sequence[Run], wide: bool) -> str:
    figure, axes = _figure(wide)
    if len(shown) == 1:
        run = shown[0]
        steps = run.series("time/step_s")[0]
        stacks = []
        for name in TIMES.values():
            at = dict(zip(*run.series(name), strict=True))
            stacks.append(thin(steps, [max(0.0, at.get(s, 0.0)) for s in steps])[1])
        x = thin(steps, [0.0] * len(steps))[0]
        kept = [(label, s, c) for label, s, c in zip(TIMES, stacks, COLOURS, strict=False) if any(s)]
        if len(x) == 1:  # an area needs two points
            x, kept = [x[0] - 0.4, x[0] + 0.4], [(label, [s[0], s[0]], c) for label, s, c in kept]
        axes.stackplot(
            x, [s for _, s, _ in kept], labels=[n for n, _, _ in kept], colors=[c for *_, c in kept], alpha=0.85,
            linewidth=0,
        )  # fmt: skip
        axes.margins(x=0.01)
        return _finish(figure, axes)
    left = [0.0] * len(shown)
    for (label, name), colour in zip(TIMES.items(), COLOURS, strict=False):
        widths = [max(0.0, statistics.fmean(run.series(name)[1] or [0.0])) for run in shown]
        if any(widths):
            axes.barh(range(len(shown)), widths, left=left, color=colour, height=0.6, label=label, alpha=0.85)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(shown)), [run.name for run in shown])
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    return _finish(figure, axes, steps=False)


def _figure(wide: bool = False) -> tuple[Any, Any]:
    """A drawing for one or two columns of the page; both are enlarged by about a fourth there."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.8, 3.1) if wide else (4.2, 3.0), layout="constrained")
    return figure, figure.add_subplot()


def _legend_of_styles(axes: Any, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """What lines of all colours have in common; the page itself says which run has which colour."""
    for legend, style in styles.items():
        axes.plot([], [], color=MUTED, label=legend, **style)


def _dot(x: Sequence[float]) -> dict[str, Any]:
    """A single point needs a marker to be seen."""
    return {"marker": "o", "markersize": 4} if len(x) == 1 else {}


def _finish(figure: Any, axes: Any, steps: bool = True) -> str:
    from matplotlib.ticker import MaxNLocator

    if steps:
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5)) if steps else None
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # Long names (a run's) need a line each, short ones share a line.
        columns = 1 if max(map(len, labels)) > 24 else min(len(labels), 3 if figure.get_figwidth() < 6 else 5)
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, labelcolor=INK)
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return themed(out.getvalue())


def themed(svg: str) -> str:
    """The <svg> element alone, scalable, with the page's colours and without what a page can spare."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r' d="[^"]*"', lambda m: re.sub(r"(?<=\d\.\d\d)\d+", "", m.group()), svg)
    return re.sub("|".join(VARIABLES), lambda m: VARIABLES[m.group()], svg)
