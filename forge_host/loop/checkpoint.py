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

import asyncio
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
        await asyncio.to_thread(_commit, partial, final, state, lock_text)
    except OSError as error:
        raise RunError(
            f"checkpoint {final} could not be written: {error.strerror}", fix="free space or set run_dir elsewhere"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk the rest of the record needs its space
    for old in _folders(run_dir)[:-keep]:
        await asyncio.to_thread(shutil.rmtree, old)
    return final


def _commit(partial: Path, final: Path, state: Mapping[str, Any], lock_text: str) -> None:
    (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (partial / "plugins.lock").write_text(lock_text, encoding="utf-8")
    (partial / "manifest.json").write_text(json.dumps(_manifest(partial)), encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    os.replace(partial, final)


@attrs.define(eq=False)
class Writer:
    """Writes a run's checkpoints, beside training where the trainer can (`snapshot` and `written`): one at a time.

    Args:
        trainer: its handle.
        background: go on as soon as the training state is copied.
        saved: called with the step and the path once a checkpoint is whole.
    """

    run_dir: Path
    lock_text: str
    keep: int
    trainer: Any
    background: bool
    saved: Callable[[int, str], None]
    _task: asyncio.Task[str] | None = None

    async def begin(self, state: Mapping[str, Any]) -> None:
        """Copy the state and write it meanwhile; without `background`, return when it is written.

        Raises:
            RunError: the checkpoint before could not be written.
        """
        await self.wait()
        if not self.background:
            await self.write(state)
            return
        copied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def save_trainer(path: str) -> None:
            await self.trainer.snapshot.call(path)
            copied.set_result(None)
            await self.trainer.written.call()

        self._task = asyncio.create_task(self._write(state, save_trainer))
        waits: set[asyncio.Future[Any]] = {self._task, copied}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        self.check()

    async def write(self, state: Mapping[str, Any]) -> str:
        """Write it now; the path."""
        await self.wait()
        return await self._write(state, self.trainer.save.call)

    def check(self) -> None:
        """Raises the RunError of a checkpoint that could not be written in the background."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def wait(self) -> None:
        """Until nothing is being written. Raises as `check`."""
        if self._task is not None:
            await asyncio.wait({self._task})
        self.check()

    async def _write(self, state: Mapping[str, Any], save_trainer: Callable[[str], Awaitable[Any]]) -> str:
        path = str(await save(self.run_dir, state, self.lock_text, save_trainer, self.keep))
        self.saved(state["step"], path)
        return path


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
