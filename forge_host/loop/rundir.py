"""The run directory: everything needed to see a run and to run it again.

config.resolved.yaml  plugins.lock  metrics.jsonl  ledger.jsonl  summary.json  report.html
rollouts/  checkpoints/  model/  logs/
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_host.config.schema import RecordConfig
from forge_host.errors import UsageError
from forge_host.loop.record import RolloutRecord, cut_record
from forge_host.types import Group, Verdict


class RunDirectory:
    """Makes `root/name-date-time` (a number is added when it exists), or exactly `path`. `begin` comes before `record`.

    Raises:
        UsageError: the directory cannot be made, or `path` holds something already.
    """

    def __init__(self, root: str, name: str, path: str | None = None, record: RecordConfig | None = None) -> None:
        try:
            self.path = _exactly(Path(path).resolve()) if path else _fresh(Path(root).resolve(), name or "run")
        except OSError as error:
            raise UsageError(
                f"cannot make a run directory at {path or root}: {error.strerror}", fix="set run_dir or --run-dir"
            ) from error
        self._open(record)

    @classmethod
    def reopen(cls, path: Path, record: RecordConfig | None = None) -> RunDirectory:
        """The directory of a run that may go on: it stays as it was until `begin`, but for its logs."""
        directory = cls.__new__(cls)
        directory.path = path
        directory._open(record)
        return directory

    def _open(self, record: RecordConfig | None) -> None:
        self.id, self._record = self.path.name, record
        self._rollouts: RolloutRecord | None = None
        for folder in ("logs", "rollouts", "checkpoints"):
            (self.path / folder).mkdir(exist_ok=True)

    @property
    def begun(self) -> bool:
        return self._rollouts is not None

    def begin(self, texts: Mapping[str, str], after: int = 0) -> None:
        """Write files that say what the run is, and open its record, without what it has of steps after `after`."""
        for name, text in texts.items():
            (self.path / name).write_text(text, encoding="utf-8")
        _cut(self.path / "metrics.jsonl", after)
        cut_record(self.path / "rollouts", after)
        self._rollouts = RolloutRecord(self.path / "rollouts", self._record)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Atomically, so that a reader never sees half of it."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, self.path / name)

    def record(self, step: int, group: Group, verdict: Verdict) -> None:
        """Append a group's episodes to the rollout record; `step` is the one they were rolled out for."""
        assert self._rollouts is not None, "begin comes first"
        self._rollouts.write(step, group, verdict)

    def close(self) -> None:
        if self._rollouts is not None:
            self._rollouts.close()


def _cut(file: Path, step: int) -> None:
    """Keep the lines of a JSON-lines file up to a step; a line cut short by a crash goes too."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except ValueError:
            continue
    temporary = file.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, file)


def check_free(path: Path) -> None:
    """Raises UsageError when something is at `path` already that a new run would mix with."""
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise UsageError(f"run directory {path} cannot be read: {error.strerror}", fix="name another") from error
    if taken:
        what = "is not empty" if path.is_dir() else "is a file"
        raise UsageError(f"run directory {path} {what}", fix="name another or remove it")


def _exactly(path: Path) -> Path:
    check_free(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _fresh(root: Path, name: str) -> Path:
    if "/" in name or name.startswith("."):
        raise UsageError(f"`{name}` is no name of a run", where="name", fix="leave out `/` and a leading dot")
    root.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{i}" for i in range(1, 1000))):
        try:
            (root / (stem + suffix)).mkdir()
            return root / (stem + suffix)
        except FileExistsError:
            continue
    raise UsageError(f"{root} holds a thousand runs of this second", fix="set --run-dir")
