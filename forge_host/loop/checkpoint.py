"""Checkpoints: written whole or not at all, checked before use, the newest good one wins.

checkpoints/step-000020/
    trainer/       what the trainer's `save` wrote: model, optimizer, schedule, random state
    state.json     step, policy version, data position, rollouts that were under way
    plugins.lock   the code it was made with
    manifest.json  size and hash of every other file; written last, so a folder without it is no checkpoint

checkpoint = newest("runs/x")        # None when there is no good one
checkpoint.state["step"]
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import structlog
import xxhash

from forge_host.errors import RunError

log = structlog.get_logger()
PREFIX = "step-"


@attrs.frozen
class Checkpoint:
    """A checked checkpoint on disk."""

    path: Path
    state: Mapping[str, Any]

    @property
    def trainer(self) -> str:
        return str(self.path / "trainer")

    @property
    def lock(self) -> Path:
        return self.path / "plugins.lock"


async def save(
    run_dir: Path, state: Mapping[str, Any], lock_text: str, save_trainer: Callable[[str], Awaitable[Any]], keep: int
) -> Path:
    """Write a checkpoint of `state["step"]` and remove all but the newest `keep`.

    Raises:
        RunError: the disk is full or cannot be written; an older checkpoint stays as it is.
    """
    final = run_dir / "checkpoints" / f"{PREFIX}{state['step']:06d}"
    partial = final.with_name(f".partial-{final.name}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "trainer").mkdir(parents=True)
        await save_trainer(str(partial / "trainer"))
        (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")
        (partial / "plugins.lock").write_text(lock_text, encoding="utf-8")
        (partial / "manifest.json").write_text(json.dumps(_manifest(partial)), encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
    except OSError as error:
        raise RunError(
            f"checkpoint {final} could not be written: {error.strerror}", fix="free space or set run_dir elsewhere"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk the rest of the record needs its space
    for old in _folders(run_dir)[:-keep]:
        shutil.rmtree(old)
    return final


def newest(run_dir: Path) -> Checkpoint | None:
    """The newest checkpoint whose every file is as it was written; damaged ones are passed over with a warning."""
    for path in reversed(_folders(run_dir)):
        problem = _damage(path)
        if problem is None:
            return Checkpoint(path, json.loads((path / "state.json").read_text(encoding="utf-8")))
        log.warning("checkpoint passed over", path=str(path), reason=problem)
    return None


def _folders(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob(f"{PREFIX}*"))


def _manifest(folder: Path) -> dict[str, list[Any]]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): [p.stat().st_size, _digest(p)] for p in files}


def _damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, None when nothing is."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was not finished"
    except ValueError:
        return "manifest.json is damaged"
    for name, (size, digest) in manifest.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size or _digest(path) != digest:
            return f"{name} is damaged"
    return None


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return str(digest.hexdigest())
