"""A run's batches on disk, and training on them again in the order they were trained on: `forge-host run --replay RUN`.

    write_batch(Path("runs/x/batches"), 3, groups)               # with record.batches: true
    Replay(Path("runs/x")).groups(3)                             # the same groups, to the last bit

Why: with rollouts running ahead of training, what a step trains on depends on which responses happened to be finished.
The recorded order makes such a run exact to repeat: same weights before the step and same batch, same weights after it.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from forge_host.errors import RunError, UsageError
from forge_host.types import Completion, Episode, Group, Prompt

FOLDER = "batches"


def batch_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06}.json.gz"


def write_batch(folder: Path, step: int, groups: Sequence[Group]) -> None:
    """The step's groups in the order they were trained on; whole or not at all."""
    folder.mkdir(exist_ok=True)
    file = batch_file(folder, step)
    temporary = file.with_suffix(".tmp")
    with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=2) as out:
        json.dump([_entry(group) for group in groups], out)
    os.replace(temporary, file)


@attrs.frozen
class Replay:
    """The recorded batches of a run directory.

    Raises:
        UsageError: it has none.
    """

    run_dir: Path

    def __attrs_post_init__(self) -> None:
        if not any((self.run_dir / FOLDER).glob("step-*.json.gz")):
            raise UsageError(
                f"{self.run_dir} has no recorded batches", where="--replay", fix="record them with record.batches: true"
            )

    def groups(self, step: int) -> list[Group]:
        """What step `step` trained on.

        Raises:
            RunError: the run did not get so far, or the file is damaged.
        """
        file = batch_file(self.run_dir / FOLDER, step)
        if not file.is_file():
            raise RunError(f"{self.run_dir} has no batch of step {step}", fix="lower training.max_steps")
        try:
            with gzip.open(file, "rt", encoding="utf-8") as source:
                return [_group(entry) for entry in json.load(source)]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} is damaged: {error}", fix="replay from a run whose record is whole") from error


def _entry(group: Group) -> dict[str, Any]:
    episodes = [{**attrs.asdict(episode), "prompt": None} for episode in group.episodes]  # the group has it
    return {"id": group.id, "prompt": attrs.asdict(group.prompt), "episodes": episodes}


def _group(entry: dict[str, Any]) -> Group:
    prompt = Prompt(**entry["prompt"])
    episodes = (
        Episode(**{**e, "prompt": prompt, "completion": Completion(**e["completion"])}) for e in entry["episodes"]
    )
    return Group(id=entry["id"], prompt=prompt, episodes=tuple(episodes))
