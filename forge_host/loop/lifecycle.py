"""What every kind of run has in common: start, work, and leave everything in order however it ends.

`Runner` (generate and train), `SftRunner` (train on given responses) and `EvalRunner` (generate and grade) fill in
`_start`, `_train` and `_results`. A run that fails or is interrupted saves a checkpoint and its weights if its trainer
still lives, then raises.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import attrs
import structlog

from forge_host.errors import ForgeError, RunError, UsageError
from forge_host.loop.checkpoint import Checkpoint, newest
from forge_host.loop.placing import placement
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.stream import PromptStream
from forge_host.loop.tracking import Trackers
from forge_host.runtime.context import RoleContext
from forge_host.runtime.handle import ActorHandle, Unanswered
from forge_host.runtime.session import Session
from forge_host.types import RunInfo, Use

log = structlog.get_logger()
SAME_SIGNAL_S = 1.0  #: a signal that follows the first within this is the same one, sent twice


class Interrupted(RunError):
    """The user or the system asked the run to end; it ended cleanly."""

    exit_code = 130


@attrs.define(eq=False, kw_only=True)
class Lifecycle:
    """One run. `main` is awaited once.

    `_start` sets `controller` (with `step`, `history` and `save`) and `trainer` where there are any, and `_train`
    sets `stepping` around its steps: outside them an interrupt ends the run at once.
    """

    config: Any
    plan: Any
    host: Any
    directory: RunDirectory
    info: RunInfo
    trackers: Trackers
    launcher: Any
    model_path: str
    lock: Any
    resume: Checkpoint | None = None
    stream: PromptStream | None = None  # of a run that goes on, from there; otherwise `_start` opens it
    texts: Mapping[str, str] = attrs.Factory(dict)  # files of the run directory, for one that goes on
    places: Mapping[str, Any] = attrs.Factory(dict)
    stop: asyncio.Event = attrs.Factory(asyncio.Event)
    controller: Any = None
    trainer: ActorHandle | None = None
    session: Session | None = None
    began: float = attrs.Factory(time.time)
    stepping: bool = False
    leaving: bool = False
    startup_s: float | None = None
    train_s: float | None = None

    @classmethod
    def roles(cls, plan: Any) -> tuple[str, ...]:
        """Roles that get processes."""
        found: tuple[str, ...] = plan.roles
        return found

    async def main(self) -> dict[str, Any]:
        """Run to the end; returns the summary or raises what ended the run."""
        self._catch_signals()
        error: Exception | None = None
        log_dir = str(self.directory.path / "logs")
        async with Session(
            launcher=self.launcher,
            log_dir=log_dir,
            monarch=self.config.monarch,
            files=self.lock.local_files,
            lock=self.lock.dumps(),
        ) as session:
            self.session = session
            try:
                await self._place(session)
                await self._start(session)
                await self._train()
                if self.stop.is_set():
                    error = Interrupted("interrupted after this step", where=self.directory.id)
            except asyncio.CancelledError:
                when = " while starting" if self.startup_s is None else ""
                error = Interrupted(f"interrupted{when}", where=self.directory.id)
            except Exception as caught:  # whatever it is, the record and the weights are saved, then it is raised
                error = _first(caught)
            self.leaving = True
            if error is not None and not isinstance(error, Interrupted):
                # At once: what follows may take a while, and whoever watches should know.
                log.error("the run failed", error=str(error))
            self._drop_lost_trainer(error)
            summary = self._summary(error)
            await self._leave(error, summary)
        try:
            if self.directory.begun:
                self.directory.write_json("summary.json", summary)
        except OSError as failure:
            error = error or disk_error(failure)
            log.error("the summary could not be written", error=str(failure))
        if error is not None:
            raise error
        return summary

    def _drop_lost_trainer(self, error: Exception | None) -> None:
        """A trainer that died or hangs can save nothing any more: end it, and name what there is to go on from."""
        trainer = self.trainer
        if trainer is None or not isinstance(error, Unanswered) or error.mesh != trainer.mesh:
            return
        trainer.dead = trainer.dead or "it did not answer"
        trainer.kill()
        found = newest(self.directory.path)
        error.fix = (
            f"go on from its checkpoint of step {found.state['step']}, {found.path}, with "
            f"`forge-host run --resume {self.directory.path}`"
            if found is not None
            else "there is no checkpoint to go on from: set checkpoint.interval"
        )

    async def _place(self, session: Session) -> None:
        """Get the hosts and give every role its place on them.

        Raises:
            ForgeError: there are no hosts, they have other plugins, the roles do not fit, or the model is not there.
        """
        cluster = await session.open()
        grow = getattr(self.launcher, "grow", None)
        self.places = placement(self.config, self.plan, cluster.hosts, self.roles(self.plan), grow)
        for name, path in await cluster.missing([self.model_path]):
            raise RunError(
                f"the model folder {path} is not on host {name}", fix="put it on a file system that all hosts share"
            )

    async def _start(self, session: Session) -> None:
        raise NotImplementedError

    async def _begin(self) -> None:
        """Go on from the checkpoint, if from one, and tell the observers that the run is up."""
        self.startup_s = time.time() - self.began
        if self.resume is not None:
            await self.controller.restore(self.resume)
            self.directory.begin(self.texts, self.resume.state["step"])
        self.trackers.start(self.info)
        self.host.hooks.forge_run_started(run=self.info)

    async def _train(self) -> None:
        raise NotImplementedError

    def _results(self) -> dict[str, Any]:
        """What this kind of run adds to the summary."""
        raise NotImplementedError

    def _context(self) -> RoleContext:
        """What every role's actor is told; `role` is filled in for each."""
        return RoleContext(
            role="",
            model_path=self.model_path,
            config=self.config,
            plan=self.plan,
            transport=self._transport(),
            namespace=f"forge-{self.directory.id}-{os.getpid()}",
            run_dir=str(self.directory.path),
            lock=self.lock,
        )

    def _transport(self) -> Use:
        """The transport that the placement allows; `auto` becomes one."""
        from forge_host.builtin.transports.auto import choose_transport

        loaded = {entry.plugin for entry in self.host.entries("transport")}
        use, reason = choose_transport(self.plan, self.places, loaded)
        log.info("transport chosen", transport=use.ref, reason=reason)
        return use

    async def _leave(self, error: Exception | None, summary: dict[str, Any]) -> None:
        """Save what a finished or failed run leaves, tell the observers, close the files."""
        controller = self.controller if self.directory.begun else None
        if controller is not None and self.trainer is not None and self.trainer.dead is None and controller.step:
            try:
                if error is not None or self.config.checkpoint.final:
                    summary["checkpoint"] = await controller.save()
                if self.config.checkpoint.export:
                    await self.trainer.save_hf.call(str(self.directory.path / "model"))
                    summary["model"] = str(self.directory.path / "model")
            except ForgeError as failure:
                summary["save_error"] = str(failure)
                log.error("the weights could not be saved", error=str(failure))
        if error is None:
            self.host.hooks.forge_run_finished(run=self.info, summary=summary)
        else:
            self.host.hooks.forge_run_failed(run=self.info, error=error)
        self.trackers.finish(summary)
        try:
            self.directory.close()
        except OSError as failure:
            log.error("the record is cut short", error=str(failure))

    def _summary(self, error: Exception | None) -> dict[str, Any]:
        return {
            "run": self.directory.id,
            "directory": str(self.directory.path),
            "status": "done" if error is None else "interrupted" if isinstance(error, Interrupted) else "failed",
            "error": str(error) if error else None,
            "startup_s": self.startup_s,
            "train_s": self.train_s,
            **self._results(),
        }

    def _catch_signals(self) -> None:
        """The first SIGINT or SIGTERM ends after the step in progress, the second at once.

        `timeout` and job managers send it to the process and to its group: what comes again at once is the first.
        """
        loop = asyncio.get_running_loop()
        main, first = asyncio.current_task(), 0.0

        def on_signal() -> None:
            nonlocal first
            if self.stop.is_set():
                if loop.time() - first < SAME_SIGNAL_S:
                    return
                if self.session is not None:
                    self.session.kill()
                os._exit(130)
            self.stop.set()
            first = loop.time()
            if self.leaving:
                print("stopping, as soon as the weights are saved; again to stop at once", file=sys.stderr, flush=True)
                return
            # Outside the steps (starting, probing, evaluating) nothing is half done that is worth finishing.
            if not self.stepping and main is not None:
                main.cancel()
            print("stopping after this step; again to stop at once", file=sys.stderr, flush=True)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)


def held_out(
    host: Any, use: Use, num_prompts: int, num_tokens: Callable[[Any], int] | None = None, budget: int = 0
) -> tuple[list[Any], int]:
    """The evaluation's prompts, of the first of its dataset; second, how many of those were longer than `budget`.

    Raises:
        UsageError: there is none.
    """
    found = list(islice(iter(host.build("dataset", use)), num_prompts))
    if not found:
        raise UsageError("the evaluation's dataset has no prompts", where="evaluation.dataset")
    prompts = found if num_tokens is None else [prompt for prompt in found if num_tokens(prompt) <= budget]
    if not prompts:
        raise UsageError(
            f"none of the {len(found)} evaluation prompts fits: training.seq_len less sampling.max_tokens, or "
            f"dataset.max_prompt_tokens, leaves {budget} tokens for a prompt",
            fix="raise training.seq_len or lower sampling.max_tokens",
        )
    if len(prompts) < len(found):
        log.warning("evaluation prompts left out as too long", count=len(found) - len(prompts), budget=budget)
    return prompts, len(found) - len(prompts)


def data_parallel_degree(config: Any) -> int:
    """Trainer ranks that get different data: procs divided by what splits the model."""
    p = config.parallelism
    split = p.tensor_parallel_degree * p.pipeline_parallel_degree * p.context_parallel_degree
    return int(config.services["trainer"].procs // split)


def _first(error: Exception) -> Exception:
    """The user's error inside a group of concurrent failures; anything else is a bug and stays as it is."""
    while isinstance(error, ExceptionGroup):
        found = [e for e in error.exceptions if isinstance(e, ForgeError)]
        error = found[0] if found else error.exceptions[0]
    return disk_error(error) if isinstance(error, OSError) and error.errno in _DISK else error


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def disk_error(error: OSError) -> RunError:
    """A disk that is full or gone, in the user's words."""
    place = f" {error.filename}" if error.filename else ""
    return RunError(
        f"the run's record{place} could not be written: {error.strerror}", fix="free space, or set run_dir elsewhere"
    )
