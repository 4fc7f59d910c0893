"""One self-contained page of one or several runs: verdict, findings, charts, samples, configuration.

    text = page([load_run("runs/a"), load_run("runs/b")])
    write_report(["runs/a"], "report.html")

It loads nothing from anywhere, follows the reader's light or dark setting, and shows at most what fits MAX_BYTES.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from forge_host.errors import UsageError
from forge_host.report.charts import COLOURS, MAX_SERIES, charts, constants, unmeasured
from forge_host.report.events import warnings_of
from forge_host.report.findings import findings, verdict
from forge_host.report.metrics import describe
from forge_host.report.reference import find_reference
from forge_host.report.rundata import Run, load_run, read_rollouts
from forge_host.report.samples import Picked, pick

MAX_TEXT = 1500  # characters of a prompt or response
LEVELS = {"good": "good", "bad": "problem", "warning": "warning", "note": "note"}


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page; `out` is a file, by default `report.html` in the first run's directory. Returns its path.

    Raises:
        UsageError: no run, too many, one that is no run directory, or an unwritable place.
    """
    if not 1 <= len(runs) <= MAX_SERIES:
        raise UsageError(f"a report shows 1 to {MAX_SERIES} runs, not {len(runs)}")
    loaded = [load_run(run) for run in runs]
    path = Path(out).expanduser() if out is not None else loaded[0].path / "report.html"
    text = page(loaded)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", fix="name another file with --out") from error
    return path


def page(runs: Sequence[Run]) -> str:
    """The whole HTML document."""
    title = ", ".join(run.name for run in runs)
    reference = find_reference(runs[0])
    picked = [
        pick(read_rollouts(run.path, run.notes), run.rows[-1]["step"] if run.rows else 0, kind=run.episodes)
        for run in runs
    ]
    figures = "".join(
        f'<div class="card chart{" wide" if c.wide else ""}"><h3>{escape(c.title)}</h3>'
        f"<small>{escape(c.caption)}</small><div>{c.svg}</div>{f'<div>{c.wide}</div>' if c.wide else ''}</div>"
        for c in charts(runs, reference)
    )
    flat = "".join(f"<li>{escape(line)}</li>" for line in constants(runs))
    absent = "".join(f"<li>{escape(line)}</li>" for line in unmeasured(runs[0]) if len(runs) == 1)
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="muted">written {time.strftime("%Y-%m-%d %H:%M:%S")}</p></header>',
        *(_verdict(run, i if len(runs) > 1 else None) for i, run in enumerate(runs)),
        _findings(runs),
        f'<h2>Charts</h2>{_legend(runs)}<div class="charts">{figures}</div>' if figures else "",
        f'<p class="muted">Constant at every step:</p><ul class="muted">{flat}</ul>' if flat else "",
        f'<p class="muted">Not measured in this run:</p><ul class="muted">{absent}</ul>' if absent else "",
        *(_samples(run, found, len(runs) > 1) for run, found in zip(runs, picked, strict=True)),
        *(_events(run, len(runs) > 1) for run in runs),
        *(_numbers(run, len(runs) > 1) for run in runs),
        *(_setup(run, len(runs) > 1) for run in runs),
    ]
    return document(title, "".join(body))


def document(title: str, body: str, script: str = "") -> str:
    """A page with the house style; `script` is trusted."""
    css = (files("forge_host.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body><main>{body}</main>{script}</body></html>\n"
    )


def _legend(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return ""
    return f'<p class="muted">{" ".join(f"{_dot(i)}{escape(run.name)} &nbsp;" for i, run in enumerate(runs))}</p>'


def _dot(number: int) -> str:
    return f'<span class="dot" style="background: var(--s{number % len(COLOURS)})"></span>'


def _verdict(run: Run, number: int | None) -> str:
    level, text = verdict(run)
    wrong = [f for f in findings(run) if f.level in ("bad", "warning")]
    second = "" if run.status == "failed" or not run.rows else "Nothing looks wrong."
    if wrong:
        second = f"{len(wrong)} thing{'s' if len(wrong) > 1 else ''} to look at, first: {wrong[0].title.lower()}."
    if wrong and wrong[0].level == "bad":
        level = "bad"
    elif wrong and level == "good":
        level = "warning"
    facts = [run.status, _times(run)]
    for key in ("model", "algorithm"):
        facts.append(str(run.setting(key) or ""))
    line = escape(", ".join(fact for fact in facts if fact))
    name = "" if number is None else f"<h3>{_dot(number)}{escape(run.name)}</h3>"
    return (
        f'<div class="card verdict {level}">{name}<p class="big">{escape(text)}</p><p>{second}</p>'
        f'<p class="muted">{line}</p></div>'
    )


def _times(run: Run) -> str:
    start, train = run.summary.get("startup_s"), run.summary.get("train_s")
    words = [f"start-up {start:.0f} s"] if isinstance(start, (int, float)) else []
    if isinstance(train, (int, float)):
        words.append(f"training {train:.0f} s")
    return ", ".join(words)


def _findings(runs: Sequence[Run]) -> str:
    cards = []
    for run in runs:
        where = f'<p class="muted">{escape(run.name)}</p>' if len(runs) > 1 else ""
        for f in findings(run):
            cards.append(
                f'<div class="card finding {f.level}"><h3><span>{LEVELS[f.level]}</span>{escape(f.title)}</h3>{where}'
                f"<p>{escape(f.evidence)}</p><p><b>Try:</b> {escape(f.remedy)}</p></div>"
            )
        for note in run.notes[:5]:
            cards.append(
                f'<div class="card finding note"><h3><span>note</span>Incomplete record</h3>{where}'
                f"<p>{escape(note)}</p></div>"
            )
    return f'<h2>Findings</h2><div class="findings">{"".join(cards)}</div>' if cards else ""


def _samples(run: Run, picked: Picked, named: bool) -> str:
    of = f" of {escape(run.name)}" if named else ""
    out = []
    if picked.probes:
        cards = "".join(_pair(before, after) for before, after in picked.probes[:6])
        out.append(f'<h2>Greedy answers before and after{of}</h2><div class="samples">{cards}</div>')
    titles = {"early": "First rollouts", "late": "Newest rollouts", "best": "Best of the late rollouts",
              "worst": "Worst of the late rollouts"}  # fmt: skip
    if run.episodes == "evaluation":
        titles = {"best": "Best responses", "worst": "Worst responses"}
    for key, title in titles.items():
        rows = getattr(picked, key)
        if rows:
            cards = "".join(f'<div class="card sample">{_prompt(row)}{_answer(row)}</div>' for row in rows)
            out.append(f'<h2>{title}{of}</h2><div class="samples">{cards}</div>')
    return "".join(out)


def _pair(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return (
        f'<div class="card sample">{_prompt(before)}<small>before</small>{_answer(before, brief=True)}'
        f"<small>after</small>{_answer(after, brief=True)}</div>"
    )


def _prompt(row: Mapping[str, Any]) -> str:
    target = row.get("target")
    aim = f' <span class="muted">(target {escape(_short(str(target), 80))})</span>' if target is not None else ""
    return f"<p>{escape(_short(prompt_text(row)))}{aim}</p>"


def _answer(row: Mapping[str, Any], brief: bool = False) -> str:
    reward = row.get("reward")
    score = "not graded" if reward is None else f"{reward:g}"
    facts = [f"step {row.get('step')}", f"{row.get('num_tokens')} tokens", str(row.get("finish_reason") or "")]
    facts += [f"{name} {value:g}" for name, value in (row.get("parts") or {}).items()]
    if row.get("kept") is False and row.get("kind") == "train":
        facts.append(f"dropped: {row.get('reason') or 'not graded'}")
    detail = "" if brief else f'<p class="muted">{escape(", ".join(filter(None, facts)))}</p>'
    text = escape(_short(str(row.get("response") or ""))) or '<span class="muted">(empty)</span>'
    return f'<p class="text">{text}</p><p class="score">reward {score}</p>{detail}'


def prompt_text(row: Mapping[str, Any]) -> str:
    """The prompt of a rollout record: its text, or its messages one under the other."""
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        return "\n".join(f"{m.get('role', '')}: {m.get('content', '')}" for m in prompt if isinstance(m, dict))
    return str(prompt or "")


def _short(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"


def _events(run: Run, named: bool) -> str:
    events = warnings_of(run)
    if not events:
        return ""
    rows = "".join(
        f'<tr><td class="n">{event.step if event.step is not None else ""}</td><td>{escape(event.level)}</td>'
        f"<td>{escape(event.text)}</td></tr>"
        for event in events
    )
    of = f" of {escape(run.name)}" if named else ""
    return (
        f'<details class="card"><summary>{len(events)} warnings in the log{of}</summary><div class="scroll"><table>'
        f'<tr><th class="n">step</th><th>level</th><th>what</th></tr>{rows}</table></div></details>'
    )


def _numbers(run: Run, named: bool) -> str:
    rows = []
    for name in run.names:
        _, values = run.series(name)
        metric = describe(name)
        cells = (
            [format_number(v) for v in (values[0], values[-1], min(values), max(values))] if values else ["nan"] * 4
        )
        numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        unit, meaning = (metric.unit, metric.help) if metric else ("", "")
        rows.append(
            f"<tr><td>{escape(name)}</td>{numbers}<td>{escape(unit)}</td>"
            f'<td class="muted">{escape(meaning)}</td></tr>'
        )
    if not rows:
        return ""
    heads = "".join(f'<th class="n">{head}</th>' for head in ("first", "last", "min", "max"))
    of = f" of {escape(run.name)}" if named else ""
    return (
        f'<details class="card"><summary>All metrics{of}</summary><div class="scroll"><table><tr><th>metric</th>{heads}'
        f"<th>unit</th><th>meaning</th></tr>{''.join(rows)}</table></div></details>"
    )


def format_number(value: float) -> str:
    """At most four significant digits, no exponent for common sizes."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _setup(run: Run, named: bool) -> str:
    of = f" of {escape(run.name)}" if named else ""
    out = []
    config = run.path / "config.resolved.yaml"
    if config.is_file():
        text = escape(config.read_text(encoding="utf-8", errors="replace"))
        out.append(f'<details class="card"><summary>Configuration{of}</summary><pre>{text}</pre></details>')
    if run.lock:
        plugins = [p for p in run.lock.get("plugins", []) if isinstance(p, dict)]
        rows = "".join(
            f"<tr><td>{escape(str(p.get('name')))}</td><td>{escape(str(p.get('version')))}</td>"
            f"<td>{escape(str(p.get('distribution')))}</td><td>{escape(str(p.get('sha256'))[:12])}</td></tr>"
            for p in plugins
        )
        versions = "".join(
            f"<tr><td>{key}</td><td>{escape(str(value))}</td><td></td><td></td></tr>"
            for key, value in run.lock.items() if isinstance(value, str)
        )  # fmt: skip
        out.append(
            f'<details class="card"><summary>Plugins and environment{of}</summary><div class="scroll"><table><tr>'
            f"<th>name</th><th>version</th><th>distribution</th><th>sha256</th></tr>{versions}{rows}</table></div></details>"
        )
    return "".join(out)
