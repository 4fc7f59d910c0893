"""A whole run from a resolved configuration: places, run directory, trackers, then the runner for what it is.

summary = run(resolve("quickstart", host=host), host)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs

from forge_host.api import ADVANTAGE_ARGUMENTS, LOSS_ARGUMENTS, REWARD_ARGUMENTS
from forge_host.config.model import resolve_model
from forge_host.loop.checkpoint import Checkpoint
from forge_host.loop.evaluating import EvalRunner
from forge_host.loop.lifecycle import Lifecycle
from forge_host.loop.roles import placement
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.runner import Runner
from forge_host.loop.sft import SftRunner
from forge_host.loop.tracking import Trackers
from forge_host.plugins.calling import CallByName
from forge_host.report.final import write_final_report
from forge_host.report.logs import configure
from forge_host.types import RunInfo


def run(
    resolved: Any,
    host: Any,
    *,
    run_dir: str | None = None,
    resume: Checkpoint | None = None,
    evaluate: bool = False,
    quiet: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run to the end; returns the summary that `summary.json` holds.

    Trains with generated responses, or with the dataset's own when the algorithm is offline (SFT).

    Args:
        resolved: `forge_host.config.resolve`'s answer.
        host: the loaded `PluginHost`.
        run_dir: make exactly this run directory instead of a fresh one under `config.run_dir`.
        resume: go on from this checkpoint, in its run's directory.
        evaluate: generate and grade only, nothing is trained.
        quiet: no progress on the terminal.
        say: where sentences for the user go.

    Raises:
        ForgeError: what ended the run, after its record and (if the trainer lived) its weights were saved.
    """
    config, plan = resolved.config, resolved.plan
    kind: type[Lifecycle] = EvalRunner if evaluate else SftRunner if plan.offline else Runner
    check_signatures(plan, host, rewards="reward" in kind.roles(plan))
    places = placement(config, plan, kind.roles(plan))
    model_path = resolve_model(config.model, host)()
    if resume is not None:
        directory = RunDirectory.reopen(resume.path.parent.parent, resume.state["step"])
    else:
        directory = RunDirectory(config.run_dir, f"{config.name}-eval" if evaluate else config.name, run_dir)
    configure(str(directory.path / "logs"), run=directory.id)
    directory.write_text("config.resolved.yaml", resolved.to_yaml())
    # Components are resolved before the lock is made, so that it covers the files their references name.
    trackers = Trackers(
        {
            part.ref: host.build("tracker", part.use)
            for part in (() if evaluate else plan.trackers)
            if not (quiet and part.ref == "builtin/console")
        }
    )
    lock = host.lock()
    lock.write(directory.path / "plugins.lock")
    runner = kind(
        config=config,
        plan=plan,
        host=host,
        directory=directory,
        info=RunInfo(id=directory.id, directory=str(directory.path), config=attrs.asdict(config)),
        trackers=trackers,
        places=places,
        model_path=model_path,
        lock=lock,
        resume=resume,
    )
    say(f"run directory: {directory.path}" + (f", resumed at step {resume.state['step']}" if resume else ""))
    try:
        return asyncio.run(runner.main())
    finally:
        report = write_final_report(directory.path)
        if report is not None:
            say(f"report: {report}")


def check_signatures(plan: Any, host: Any, *, rewards: bool) -> None:
    """Build the loss, the advantage and the rewards here once, so that a wrong setting or an argument nobody provides
    is said before any process starts.

    Raises:
        PluginError: a component asks for a value that does not exist, naming those that do.
        UsageError: one of its settings is wrong.
    """
    CallByName(host.build("loss", plan.loss.use), LOSS_ARGUMENTS, plan.loss.describe())
    CallByName(host.build("advantage", plan.advantage.use), ADVANTAGE_ARGUMENTS, plan.advantage.describe())
    for part in [part for part, _ in plan.rewards] + list(plan.shaping) if rewards else ():
        CallByName(host.build("reward", part.use), REWARD_ARGUMENTS, part.describe())
