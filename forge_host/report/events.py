"""Warnings and errors of a run's structured log, each with the step it happened in. Torch-free.

for event in warnings_of(run):
    print(event.step, event.text)
"""

from __future__ import annotations

import json
from collections import deque
from datetime import datetime

import attrs

from forge_host.report.rundata import Run

LEVELS = ("warning", "error", "critical", "exception")
MAX_TEXT = 400  # characters


@attrs.frozen
class Event:
    """`step` is the one in progress, by the clock; None when the run's steps have no times."""

    step: int | None
    level: str
    text: str


def warnings_of(run: Run, limit: int = 20) -> list[Event]:
    """The newest `limit`, oldest first; lines that a crash cut are left out."""
    file = run.path / "logs" / "controller.jsonl"
    if not file.is_file():
        return []
    found: deque[Event] = deque(maxlen=limit)
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict) or entry.get("level") not in LEVELS:
            continue
        known = ("event", "level", "timestamp", "run", "role")
        rest = ", ".join(f"{key} {value}" for key, value in entry.items() if key not in known)
        text = " ".join(f"{entry.get('event')}: {rest}".split()).rstrip(": ")
        text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ..."
        found.append(Event(_step_at(run, str(entry.get("timestamp"))), str(entry["level"]), text))
    return list(found)


def _step_at(run: Run, timestamp: str) -> int | None:
    try:
        when = datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
    times = [(row["step"], row.get("time")) for row in run.rows]
    later = [step for step, time in times if isinstance(time, (int, float)) and time >= when]
    if later:
        return later[0]
    return times[-1][0] + 1 if times else 1
