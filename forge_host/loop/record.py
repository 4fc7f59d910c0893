"""The rollout record on disk: JSON lines in parts, closed parts compressed, the whole under a size cap.

    record = RolloutRecord(Path("runs/x/rollouts"))
    record.write(step=1, group=group, verdict=verdict)
    record.close()

Files: `rollouts.jsonl` is written to; at `record.part_mb` it becomes `rollouts-00001.jsonl.gz`, and so on. Above
`record.max_mb` the oldest parts but the first are removed: how a run began and what it does now is what people look
for. Reading is `forge_host.report.rundata.read_rollouts`.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import structlog

from forge_host.config.schema import RecordConfig
from forge_host.types import Completion, Episode, Group, Verdict

log = structlog.get_logger()
CURRENT = "rollouts.jsonl"
MB = 1_000_000
#: What the roller writes into a completion's metadata: seconds that its group was waited for.
TIMED = ("generate_s", "reward_s")


class RolloutRecord:
    """Appends episodes to `folder`, with what `config` asks for of each."""

    def __init__(self, folder: Path, config: RecordConfig | None = None) -> None:
        self._config = config or RecordConfig()
        self._folder = folder
        self._part, self._max = int(self._config.part_mb * MB), int(self._config.max_mb * MB)
        folder.mkdir(exist_ok=True)
        self._packing: threading.Thread | None = None
        for left in folder.glob("*.tmp"):  # of a process that was killed
            left.unlink()
        self._out = open(folder / CURRENT, "ab")

    def write(self, step: int, group: Group, verdict: Verdict) -> None:
        """A group's episodes; `step` is the one they were rolled out for."""
        rows = (episode_row(step, group, e, verdict) | self._tokens(e) for e in group.episodes)
        self._out.write(b"".join(_encoded(row) for row in rows))
        self._out.flush()
        if self._out.tell() >= self._part:
            self._rotate()

    def _tokens(self, episode: Episode) -> dict[str, Any]:
        """What is written per token, which makes a record several times as large."""
        completion, out = episode.completion, dict[str, Any]()
        if self._config.token_ids:
            out["prompt_ids"], out["token_ids"] = list(completion.prompt_ids), list(completion.token_ids)
        if self._config.logprobs:  # nats; JSON has no -inf
            out["logprobs"] = [round(v, 6) if math.isfinite(v) else None for v in completion.logprobs]
        return out

    def close(self) -> None:
        self._out.close()
        if self._packing is not None:
            self._packing.join()

    def _rotate(self) -> None:
        self._out.close()
        number = 1 + max((part_number(p) for p in parts(self._folder)), default=0)
        part = self._folder / f"rollouts-{number:05}.jsonl"
        os.replace(self._folder / CURRENT, part)
        self._out = open(self._folder / CURRENT, "ab")
        if self._packing is not None:
            self._packing.join()
        # In a thread, as a second of compression would hold up the loop.
        self._packing = threading.Thread(target=self._pack, args=(part,), name="pack-rollouts")
        self._packing.start()

    def _pack(self, part: Path) -> None:
        try:
            compress(part)
            self._keep_cap()
        except OSError as error:  # a full disk; the part stays as it is and can be read
            log.warning("rollouts not compressed", part=part.name, error=str(error))

    def _keep_cap(self) -> None:
        found = parts(self._folder)
        total = sum(p.stat().st_size for p in found)
        for old in found[1:-1]:
            if total <= self._max:
                return
            total -= old.stat().st_size
            old.unlink()
            log.warning("old rollouts removed", part=old.name, max_mb=self._max // MB)


def parts(folder: Path) -> list[Path]:
    """Closed parts, oldest first; where a crash left a part both plain and compressed, the compressed one."""
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("rollouts-*.jsonl")) + sorted(folder.glob("rollouts-*.jsonl.gz")):
        found[part_number(path)] = path
    return [found[number] for number in sorted(found)]


def part_number(path: Path) -> int:
    """7 for `rollouts-00007.jsonl.gz`."""
    return int(path.name.partition("-")[2].partition(".")[0])


def compress(part: Path) -> Path:
    """Replaces `x.jsonl` by `x.jsonl.gz`, whole or not at all."""
    packed, temporary = part.with_name(part.name + ".gz"), part.with_name(part.name + ".gz.tmp")
    with open(part, "rb") as source, gzip.open(temporary, "wb", compresslevel=4) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    os.replace(temporary, packed)
    part.unlink()
    return packed


def cut_record(folder: Path, step: int) -> None:
    """Removes what was recorded of steps after `step`, for a run that goes on from there, and lines cut by a crash."""
    for path in [*parts(folder), folder / CURRENT]:
        if not path.exists():
            continue
        opener: Any = gzip.open if path.suffix == ".gz" else open
        temporary = path.with_name(path.name + ".tmp")
        with opener(path, "rt", encoding="utf-8", errors="replace") as source:
            with opener(temporary, "wt", encoding="utf-8") as target:
                for line in source:
                    if _step_of(line, step) <= step:
                        target.write(line)
        os.replace(temporary, path)


def _step_of(line: str, step: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return step + 1


def episode_row(step: int, group: Group, episode: Episode, verdict: Verdict) -> dict[str, Any]:
    """An episode as it is recorded, plain data."""
    completion = episode.completion
    return {
        "step": step,
        "id": episode.id,
        "prompt_id": group.prompt.id,
        "prompt": group.prompt.text or [dict(m) for m in group.prompt.messages or ()],
        "target": group.prompt.target,
        "response": transcript(completion),
        "num_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "policy_versions": _span(completion.policy_versions),
        "reward": episode.reward,
        "parts": dict(episode.parts),
        "note": episode.note,
        "error": episode.error,
        "seconds": {name: round(float(s), 4) for name in TIMED if (s := completion.metadata.get(name)) is not None},
        "kept": verdict.keep and episode.reward is not None,
        "reason": verdict.reason,
    }


def transcript(completion: Completion) -> str:
    """The response; of a conversation all that was said, each turn after the first with its speaker."""
    turns = list(completion.metadata.get("turns") or ())
    if len(turns) < 2:
        return completion.text
    return "\n".join([str(turns[0]["content"]), *(f"[{turn['role']}] {turn['content']}" for turn in turns[1:])])


def _encoded(row: dict[str, Any]) -> bytes:
    """A line. Where orjson refuses (half of a surrogate pair, which becomes "?") json does it, twenty times slower."""
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _span(versions: Sequence[int]) -> list[int]:
    if versions and versions.count(versions[0]) == len(versions):  # nearly always, and 30 times faster
        return [versions[0], versions[0]]
    return [min(versions), max(versions)] if versions else []
