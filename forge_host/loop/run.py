"""A whole run from a resolved configuration: places, run directory, trackers, then the runner for what it is.

summary = run(resolve("quickstart", host=host), host)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from forge_host.config.model import resolve_model
from forge_host.loop.checkpoint import Checkpoint
from forge_host.loop.evaluating import EvalRunner
from forge_host.loop.lifecycle import Lifecycle
from forge_host.loop.placing import placement
from forge_host.loop.preflight import check_signatures
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.runner import Runner
from forge_host.loop.sft import SftRunner
from forge_host.loop.stream import open_stream
from forge_host.loop.tracking import Trackers
from forge_host.loop.vocabulary import check_vocabulary
from forge_host.report.final import write_final_report
from forge_host.runtime.logs import configure
from forge_host.types import RunInfo


def run(
    resolved: Any,
    host: Any,
    *,
    run_dir: str | None = None,
    resume: Checkpoint | None = None,
    evaluate: bool = False,
    runner: type[Lifecycle] | None = None,
    runner_args: Mapping[str, Any] | None = None,
    allow: frozenset[str] = frozenset(),
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
        runner: what runs instead of the usual one (a benchmark), with `runner_args` as well.
        allow: what may differ from the checkpoint; "dataset" is looked at here.
        quiet: no progress on the terminal.
        say: where sentences for the user go.

    Raises:
        ForgeError: what ended the run, after its record and (if the trainer lived) its weights were saved.
    """
    config, plan = resolved.config, resolved.plan
    kind = runner or (EvalRunner if evaluate else SftRunner if plan.offline else Runner)
    check_signatures(plan, host, rewards="reward" in kind.roles(plan))
    launcher = host.build("launcher", plan.launcher.use)
    promised = launcher.hosts()
    if promised is not None:  # what cannot be placed is refused before anything is asked of a cluster
        placement(config, plan, promised, kind.roles(plan), getattr(launcher, "grow", None))
    model_path = resolve_model(config.model, host)()
    check_vocabulary(model_path)
    trackers = Trackers(
        {
            part.ref: host.build("tracker", part.use)
            for part in (() if evaluate else plan.trackers)
            if not (quiet and part.ref == "builtin/console")
        }
    )
    stream = None
    if resume is not None:
        saved = resume.state["stream"]
        stream = open_stream(host, plan.dataset.use, config.training.seed, saved, "dataset" in allow)
        directory = RunDirectory.reopen(resume.path.parent.parent, config.record)
    else:
        name = f"{config.name}-eval" if evaluate else config.name
        directory = RunDirectory(config.run_dir, name, run_dir, config.record)
    configure(str(directory.path / "logs"), "controller", run=directory.id, role="controller", rank=0)
    lock = host.lock()  # after the components are found, so that it covers the files that their references name
    texts = {"config.resolved.yaml": resolved.to_yaml(), "plugins.lock": lock.dumps()}
    if resume is None:  # else when the checkpoint is loaded: what cannot go on stays as it was
        directory.begin(texts)
    lifecycle = kind(
        config=config,
        plan=plan,
        host=host,
        directory=directory,
        info=RunInfo(id=directory.id, directory=str(directory.path), config=attrs.asdict(config)),
        trackers=trackers,
        launcher=launcher,
        model_path=model_path,
        lock=lock,
        resume=resume,
        stream=stream,
        texts=texts,
        **(runner_args or {}),
    )
    say(f"run directory: {directory.path}" + (f", resumed at step {resume.state['step']}" if resume else ""))
    try:
        summary = asyncio.run(lifecycle.main())
    except BaseException:  # an interrupt too: its report is worth as much
        report = write_final_report(directory.path)
        if report is not None:
            say(f"report: {report}")
        raise
    report = write_final_report(directory.path)
    return summary | ({"report": str(report)} if report is not None else {})
