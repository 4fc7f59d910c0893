"""Reads a run directory, finished or not, whole or damaged: what reports, rollouts and checks are made of. Torch-free.

    run = load_run("runs/quickstart-20261201-111745")
    run.series("reward/mean")      # ([1, 2, ...], [0.14, 0.27, ...])

Damage (a line cut by a crash, a missing summary) is kept in `notes`, one sentence each, for the reader to see.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import attrs
import yaml

from forge_host.errors import UsageError
from forge_host.loop.record import CURRENT, part_number, parts

#: One of these makes a folder a run directory.
MARKS = ("config.resolved.yaml", "metrics.jsonl", "summary.json")


#: Settings of an algorithm's section that a general section may replace.
GENERAL = {
    "beta": "kl.beta", "n_samples": "sampling.n", "max_tokens": "sampling.max_tokens",
    "aggregation": "aggregation.mode", "correction": "correction.mode",
}  # fmt: skip


@attrs.define(kw_only=True)
class Run:
    """One run.

    Args:
        rows: `{"step", "policy_version", "time", "metrics"}` by step; a metric that was not finite is NaN.
        summary: of `summary.json`; empty while the run goes on, or when it was killed.
        lock: of `plugins.lock`.
    """

    path: Path
    config: Mapping[str, Any]
    rows: list[dict[str, Any]]
    summary: Mapping[str, Any]
    lock: Mapping[str, Any]
    notes: list[str]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def status(self) -> str:
        """done, failed, interrupted, or "unfinished" (no summary: it goes on, or it was killed)."""
        return str(self.summary.get("status") or "unfinished")

    @property
    def names(self) -> list[str]:
        """Every metric of any step, sorted."""
        return sorted({name for row in self.rows for name in row["metrics"]})

    @property
    def episodes(self) -> str:
        """The kind of its episodes that count: "train", or "evaluation" of a run that only evaluates."""
        return "evaluation" if self.summary.get("kind") == "eval" else "train"

    def series(self, name: str, finite: bool = True) -> tuple[list[int], list[float]]:
        """Steps and values of a metric; steps without it (with `finite`, also NaN ones) are left out."""
        pairs = [(row["step"], row["metrics"][name]) for row in self.rows if name in row["metrics"]]
        pairs = [(s, v) for s, v in pairs if math.isfinite(v)] if finite else pairs
        return [s for s, _ in pairs], [v for _, v in pairs]

    def evaluation(self, name: str) -> tuple[list[int], list[float]]:
        """`series` of an `eval/...` metric, with the evaluation before the first step where the summary has it."""
        steps, values = self.series(name)
        first = (self.summary.get("evaluation_first") or {}).get(name)
        if isinstance(first, (int, float)) and math.isfinite(first) and 0 not in steps:
            return [0, *steps], [float(first), *values]
        return steps, values

    def setting(self, key: str) -> Any:
        """A dotted key of the configuration, `rewards.0.use` for what is in a list; None when it is not there."""
        value: Any = self.config
        for part in key.split("."):
            if isinstance(value, list) and part.isdigit():
                value = value[int(part)] if int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def algorithm_key(self, name: str) -> str:
        """The key that decides a setting of the algorithm here: `grpo.beta`, or `kl.beta` where that replaces it."""
        general = GENERAL.get(name)
        if general is not None and self.setting(general) is not None:
            return general
        return f"{str(self.setting('algorithm') or 'grpo').rpartition('/')[2]}.{name}"


def load_run(path: str | Path) -> Run:
    """Read a run directory.

    Raises:
        UsageError: it does not exist or is no run directory.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "is a file, not a run directory" if folder.exists() else "does not exist"
        raise UsageError(f"run directory {path} {what}", fix="name a folder that `forge-host run` made")
    if not any((folder / mark).is_file() for mark in MARKS):
        raise UsageError(
            f"{path} is not a run directory, as it has none of {', '.join(MARKS)}",
            fix="name a folder that `forge-host run` made",
        )
    notes: list[str] = []
    summary = _mapping(folder / "summary.json", json.loads, notes)
    rows = []
    if summary.get("kind") != "eval":  # it has no steps
        rows = _metric_rows(folder / "metrics.jsonl", notes)
    return Run(
        path=folder.resolve(),
        config=_mapping(folder / "config.resolved.yaml", yaml.safe_load, notes),
        rows=rows,
        summary=summary,
        lock=_mapping(folder / "plugins.lock", json.loads, notes),
        notes=notes,
    )


def read_rollouts(path: Path, notes: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Every recorded episode, oldest first; a line that a crash cut is left out and noted.

    `kind` is added: "train", "probe" (fixed prompts before and after) or "evaluation".
    """
    files = record_files(path)
    numbers = [part_number(file) for file in files if file.name != CURRENT]
    missing = set(range(1, max(numbers, default=0))) - set(numbers)
    if missing and notes is not None:
        notes.append(f"{len(missing)} parts of the rollout record are missing: removed to keep its size, or lost")
    for file in files:
        number = 0
        try:
            with open_text(file) as lines:
                for number, line in enumerate(lines, 1):
                    row = _json_object(line)
                    if row is None:
                        if notes is not None:
                            notes.append(f"{file.name} line {number} is not a whole record and was left out")
                        continue
                    reason = row.get("reason")
                    row["kind"] = reason if reason in ("probe", "evaluation") else "train"
                    yield row
        except (OSError, EOFError, UnicodeDecodeError) as error:
            if notes is not None:
                notes.append(f"{file.name} could not be read after line {number}: {error}")


def record_files(path: Path) -> list[Path]:
    """The files of a run's rollout record, oldest first: closed parts, then the one written to."""
    folder = path / "rollouts"
    current = folder / CURRENT
    return [*parts(folder), *([current] if current.exists() else [])]


def open_text(file: Path) -> TextIO:
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else open(file, encoding="utf-8")


def _metric_rows(file: Path, notes: list[str]) -> list[dict[str, Any]]:
    if not file.is_file():
        notes.append("there is no metrics.jsonl: no step was finished, or the run had no jsonl tracker")
        return []
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        row = _json_object(line)
        if row is None or not isinstance(row.get("metrics"), dict) or not isinstance(row.get("step"), int):
            notes.append(f"metrics.jsonl line {number} is not a whole record and was left out")
            continue
        metrics = {name: math.nan if v is None else v for name, v in row["metrics"].items()}
        row["metrics"] = {name: float(v) for name, v in metrics.items() if isinstance(v, (int, float))}
        rows[row["step"]] = row
    return [rows[step] for step in sorted(rows)]


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _mapping(file: Path, parse: Any, notes: list[str]) -> dict[str, Any]:
    if not file.is_file():
        if file.name != "summary.json":
            notes.append(f"there is no {file.name}")
        return {}
    try:
        value = parse(file.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        notes.append(f"{file.name} could not be read: {' '.join(str(error).split())[:200]}")
        return {}
    return value if isinstance(value, dict) else {}
