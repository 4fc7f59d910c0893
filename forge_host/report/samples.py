"""Picks what a report shows of the completions, in one pass over the record: early, late, best, worst. Torch-free.

    picked = pick(read_rollouts(run.path), last_step=100)
    picked.best[0]["response"]

Only `size` episodes of each are held, so a record of any length can be read.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

Row = Mapping[str, Any]
LATE_SHARE = 0.2  # the end of a run that best and worst are taken from


@attrs.define
class Picked:
    """Episodes that were trained on or dropped (`early`, `late`, `best`, `worst`), with different prompts each.

    `probes` are (before, after) pairs of the same prompt; `num_train` counts the training episodes.
    """

    early: list[Row] = attrs.Factory(list)
    late: list[Row] = attrs.Factory(list)
    best: list[Row] = attrs.Factory(list)
    worst: list[Row] = attrs.Factory(list)
    probes: list[tuple[Row, Row]] = attrs.Factory(list)
    num_train: int = 0


def pick(rows: Iterable[Row], last_step: int, size: int = 4, kind: str = "train") -> Picked:
    """What to show of `rows`, which come oldest first.

    Args:
        last_step: where the run's end is counted from.
        size: episodes a list.
        kind: of the episodes that count; probes are always paired.
    """
    out = Picked()
    first_probe: dict[Any, Row] = {}
    last_probe: dict[Any, Row] = {}
    late: list[Row] = []
    best: list[tuple[float, int, Row]] = []
    worst: list[tuple[float, int, Row]] = []
    begin = last_step * (1 - LATE_SHARE)
    for number, row in enumerate(rows):
        if row.get("kind") == "probe":
            (last_probe if row.get("prompt_id") in first_probe else first_probe)[row.get("prompt_id")] = row
            continue
        if row.get("kind") != kind:
            continue
        out.num_train += 1
        if len(out.early) < size and _new_prompt(row, out.early):
            out.early.append(row)
        late = [*[r for r in late if r.get("prompt") != row.get("prompt")], row][-size:]
        reward = row.get("reward")
        if isinstance(reward, (int, float)) and math.isfinite(reward) and row.get("step", 0) >= begin:
            _keep(best, (float(reward), number, row), 8 * size)
            _keep(worst, (-float(reward), number, row), 8 * size)
    out.late = late
    for heap, target in ((best, out.best), (worst, out.worst)):
        for _, _, row in sorted(heap, key=lambda item: item[:2], reverse=True):
            if len(target) < size and _new_prompt(row, target):
                target.append(row)
    out.probes = [(first_probe[key], last_probe[key]) for key in first_probe if key in last_probe]
    return out


def _new_prompt(row: Row, others: Iterable[Row]) -> bool:
    return all(row.get("prompt") != other.get("prompt") for other in others)


def _keep(heap: list[tuple[float, int, Row]], item: tuple[float, int, Row], limit: int) -> None:
    """The `limit` largest; the number breaks ties, so rows are never compared."""
    if len(heap) < limit:
        heapq.heappush(heap, item)
    elif item[:2] > heap[0][:2]:
        heapq.heapreplace(heap, item)
