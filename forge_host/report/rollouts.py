"""The rollout record of a run: filter, sort, and what each episode is called in a filter. Torch-free.

    found = select(load_run("runs/x"), where="reward/math<1 and step>10", sort="-reward", limit=20)
    found.rows[0]["response"], found.matched, found.total

Names: the fields of the record (FIELDS), `reward/NAME` for a reward part, and every metric of the episode's step
(`policy/kl`), so that "what did it say when KL was high" is one filter.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from forge_host.errors import UsageError
from forge_host.plugins.suggest import did_you_mean, listing
from forge_host.report.html import prompt_text
from forge_host.report.rundata import Run, read_rollouts
from forge_host.report.where import compile_where

#: name -> what it is
FIELDS: dict[str, str] = {
    "step": "step the episode was rolled out for; 0 is before the first",
    "kind": "train, probe (fixed prompts before and after) or evaluation",
    "id": "episode",
    "prompt_id": "prompt",
    "prompt": "text of the prompt",
    "target": "what the prompt's data expects",
    "response": "text of the response",
    "reward": "composed reward; None when it could not be graded",
    "num_tokens": "length of the response",
    "finish_reason": "stop, length or abort",
    "policy_version": "newest weights that sampled it",
    "kept": "it was given to the trainer",
    "reason": "why it was not",
    "note": "what the rewards noted",
    "error": "why it could not be graded",
}
Row = Mapping[str, Any]


@attrs.frozen
class Selection:
    """`rows` in order, `matched` of `total` episodes; `names` are all that a filter may use."""

    rows: list[Row]
    matched: int
    total: int
    names: list[str]


def select(run: Run, where: str | None = None, sort: str | None = None, limit: int | None = None) -> Selection:
    """Read a run's record.

    Args:
        where: a filter, see `forge_host.report.where`.
        sort: a name, with "-" in front for the largest first; without it, the newest `limit` in order.
        limit: most rows returned; None is all.

    Raises:
        UsageError: no record, an unknown name, or a wrong expression.
    """
    metrics = {row["step"]: row["metrics"] for row in run.rows}
    parts: set[str] = set()
    total = 0
    for row in read_rollouts(run.path, run.notes):
        parts.update(row.get("parts") or ())
        total += 1
    if not total:
        if run.rows:
            raise UsageError(
                f"{run.path} has no rollouts: it generated nothing, as SFT does",
                fix=f"see its losses with `forge-host report {run.path}`",
            )
        raise UsageError(
            f"{run.path} has no rollouts", fix="wait for the first step" if run.status == "unfinished" else None
        )
    names = [*FIELDS, *(f"reward/{part}" for part in sorted(parts)), *run.names]
    known = set(names)
    keep = compile_where(where, known) if where else None
    key = sort.lstrip("-") if sort else ""
    if sort and key not in known:
        raise UsageError(
            f"the rollouts have no `{key}`", where="--sort",
            fix=did_you_mean(key, known) or f"there are {listing(known)}",
        )  # fmt: skip
    matched = 0

    def matching() -> Any:
        nonlocal matched
        for row in read_rollouts(run.path):
            if keep is None or keep(lookup(row, metrics)):
                matched += 1
                yield row

    if sort:
        order = _order(key, metrics)
        found = list(matching())
        pick = heapq.nlargest if sort.startswith("-") else heapq.nsmallest
        present = [row for row in found if order(row) is not None]
        try:
            rows = pick(len(present) if limit is None else limit, present, key=order)
        except TypeError as error:
            raise UsageError(f"`{key}` cannot be sorted by: {error}", where="--sort") from None
    else:
        rows = list(deque(matching(), maxlen=limit))
    return Selection(rows, matched, total, names)


def lookup(row: Row, metrics: Mapping[int, Mapping[str, float]]) -> Callable[[str], Any]:
    """The values of an episode by a filter's names."""

    def value(name: str) -> Any:
        if name == "policy_version":
            versions = row.get("policy_versions")
            return versions[-1] if versions else None
        if name == "prompt":
            return prompt_text(row)
        if name in FIELDS:
            return row.get(name)
        part = name.removeprefix("reward/")
        parts = row.get("parts") or {}
        if part != name and part in parts:
            return parts[part]
        return metrics.get(row.get("step", -1), {}).get(name)

    return value


def _order(key: str, metrics: Mapping[int, Mapping[str, float]]) -> Callable[[Row], Any]:
    def order(row: Row) -> Any:
        value = lookup(row, metrics)(key)
        return None if isinstance(value, float) and math.isnan(value) else value

    return order
