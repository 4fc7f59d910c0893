"""The ledger: what became of every episode that was asked for. None is trained on twice, none is lost unaccounted.

    ledger = Ledger(Path("runs/x/ledger.jsonl"))
    ledger.requested("3:gsm8k-17", 8)
    ledger.trained(step=1, group=group)              # or ledger.dropped(step, group, "rewards are all equal")
    ledger.close()                                   # what is neither was under way, or ready, when the run ended
    ledger.totals()    # {"requested": 8, "trained": 7, "dropped": 1, "left": 0, "reasons": {"reward `x` ...": 1}}

Why: after kills, restarts and re-routed requests nothing else proves what the model saw. One JSON line a group, written
when its fate is known; episodes are numbered as in the rollout record (`3:gsm8k-17/0`, ...):

    {"step": 1, "group": "3:gsm8k-17", "episodes": 4, "trained": [0, 1, 3], "dropped": {"reward `x` ...": [2]}}
    {"step": 1, "group": "5:gsm8k-2", "episodes": 4, "left": "under way"}

Memory holds the groups under way only.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from forge_host.loop.batch import why_untrainable
from forge_host.types import Group

NAME = "ledger.jsonl"
_REASON_CHARS = 120  # reasons may quote a response; the rollout record has them whole


class Ledger:
    """Appends to `path`; of a run that goes on, what was written up to `keep` bytes is kept and counted."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._live: dict[str, int] = {}
        self._ready: set[str] = set()
        self._count: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._end = keep
        self._out = open(path, "a+b")
        self._out.truncate(keep)
        self._out.seek(0)
        for line in self._out:
            row = json.loads(line)
            self._count["requested"] += row["episodes"]
            self._add(row)

    def requested(self, group_id: str, episodes: int) -> None:
        """A prompt was handed to a generator, for so many episodes."""
        assert group_id not in self._live, f"{group_id} was asked for twice"
        self._live[group_id] = episodes
        self._count["requested"] += episodes

    def ready(self, group_id: str) -> None:
        """It is graded and waits to be trained on."""
        assert group_id in self._live
        self._ready.add(group_id)

    def trained(self, step: int, group: Group) -> None:
        """Its trainable episodes were part of an optimizer step."""
        trained: list[int] = []
        dropped: dict[str, list[int]] = {}
        for index, episode in enumerate(group.episodes):
            reason = why_untrainable(episode)
            if reason is None:
                trained.append(index)
            else:
                dropped.setdefault(reason[:_REASON_CHARS], []).append(index)
        self._close_group(step, group.id, len(group.episodes), {"trained": trained, "dropped": dropped})

    def dropped(self, step: int, group: Group, reason: str) -> None:
        """The whole group is not trained on."""
        indices = list(range(len(group.episodes)))
        self._close_group(step, group.id, len(indices), {"trained": [], "dropped": {reason[:_REASON_CHARS]: indices}})

    def _close_group(self, step: int, group_id: str, episodes: int, fate: dict[str, Any]) -> None:
        asked = self._live.pop(group_id, None)
        assert asked is not None, f"{group_id} has two fates"
        self._ready.discard(group_id)
        if missing := asked - episodes:
            fate["dropped"]["the generator returned fewer"] = list(range(episodes, episodes + missing))
        total = max(asked, episodes)  # an environment may make several episodes of one conversation
        self._count["requested"] += total - asked
        self._write({"step": step, "group": group_id, "episodes": total, **fate})

    def _write(self, row: dict[str, Any]) -> None:
        self._add(row)
        self._out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def _add(self, row: dict[str, Any]) -> None:
        if "left" in row:
            self._count["left"] += row["episodes"]
            return
        self._count["trained"] += len(row["trained"])
        for reason, indices in row["dropped"].items():
            self._count["dropped"] += len(indices)
            self._reasons[reason] += len(indices)

    def position(self) -> int:
        """Bytes written of groups with a fate, for a checkpoint: `keep` of a run that goes on from it."""
        if not self._out.closed:
            self._out.flush()
            self._end = self._out.tell()
        return self._end

    def close(self, step: int = 0) -> None:
        """Write down what was under way or ready when the run ended."""
        if self._out.closed:
            return
        self.position()
        for group_id, episodes in self._live.items():
            left = "ready" if group_id in self._ready else "under way"
            self._write({"step": step, "group": group_id, "episodes": episodes, "left": left})
        self._live.clear()
        self._out.close()

    def totals(self) -> dict[str, Any]:
        """Episodes: requested = trained + dropped + left (under way or ready now); and the reasons of the dropped."""
        left = self._count["left"] + sum(self._live.values())
        counts = {name: self._count[name] for name in ("requested", "trained", "dropped")}
        assert counts["requested"] == counts["trained"] + counts["dropped"] + left, (counts, left)
        return {**counts, "left": left, "reasons": dict(self._reasons.most_common())}


def read_ledger(run_dir: Path) -> list[dict[str, Any]]:
    """Every line of a run's ledger."""
    return [json.loads(line) for line in (run_dir / NAME).read_text(encoding="utf-8").splitlines()]


def check_ledger(run_dir: Path) -> dict[str, int]:
    """Prove it from the file: every episode has exactly one fate. Returns the counts.

    Raises:
        ValueError: an episode was trained on twice, has two fates, or none.
    """
    fates: Counter[str] = Counter()
    seen: set[str] = set()
    for row in read_ledger(run_dir):
        if row["group"] in seen:
            raise ValueError(f"{row['group']} has two fates")
        seen.add(row["group"])
        if "left" in row:
            fates["left"] += row["episodes"]
            continue
        indices = [*row["trained"], *(i for dropped in row["dropped"].values() for i in dropped)]
        if sorted(indices) != list(range(row["episodes"])):
            raise ValueError(f"{row['group']} has {row['episodes']} episodes, accounted for are {sorted(indices)}")
        fates["trained"] += len(row["trained"])
        fates["dropped"] += len(indices) - len(row["trained"])
    return dict(fates)
