"""`forge-host run`: resolve a configuration, then train; `--dry-run` prints the plan and starts nothing.

    forge-host run quickstart
    forge-host run c.yaml --plugins dapo,math --set training.max_steps=20 --trainer.procs 4

`--resume RUN` takes the run's own configuration; what is set on the command line still wins over it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options
from forge_host.errors import UsageError

if TYPE_CHECKING:
    from forge_host.config import Resolved
    from forge_host.loop.checkpoint import Checkpoint

#: What `--allow` knows besides plugin:NAME and file:PATH.
ALLOWED = ("dataset", "forge-host", "python", "torch", "monarch")


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that trains."""
    for option in reversed(
        (
            click.option("--dry-run", is_flag=True, help="Print the plan and start nothing."),
            click.option("--resume", metavar="RUN", help="Go on from the newest good checkpoint of this directory."),
            click.option(
                "--allow", multiple=True, metavar="NAME",
                help="Let this differ from the checkpoint or lock: dataset, plugin:NAME, file:PATH, forge-host, "
                "python, torch, monarch.",
            ),
            click.option("--locked", metavar="FILE", help="Refuse plugins that differ from this plugins.lock."),
            click.option("--run-dir", metavar="DIR", help="Make exactly this run directory."),
            click.option("--quiet", is_flag=True, help="No live progress; only the summary."),
            click.option("--check", is_flag=True, help="Exit with 4 when the run leaves the recipe's expected curve."),
            click.option("--reference", metavar="FILE", help="Check against this expected curve, not the recipe's."),
        )
    ):
        command = option(command)
    return command


@click.command(context_settings=CONFIG_CONTEXT)
@config_options
@run_options
@click.option("--replay", metavar="RUN", help="Train on the batches that this run recorded (record.batches: true).")
def run(setup: Setup, **options: Any) -> None:
    """Train. CONFIG is a YAML file or a recipe's name (default: quickstart); --KEY VALUE sets any key of it."""
    train(setup, "quickstart", **options)


def train(
    setup: Setup,
    default: str,
    examine: Callable[[Resolved], None] | None = None,
    *,
    dry_run: bool,
    resume: str | None,
    locked: str | None,
    run_dir: str | None,
    quiet: bool,
    check: bool = False,
    reference: str | None = None,
    allow: tuple[str, ...] = (),
    replay: str | None = None,
) -> dict[str, Any] | None:
    """Resolve, `examine` and run what the command line asked for; without a configuration the recipe `default`.

    Returns the run's summary; None after a dry run.
    """
    from forge_host.report.reference import check_run, check_settings, load_reference

    expected = None
    _check_allowed(allow)
    recorded = None
    if replay is not None:
        from forge_host.loop.replay import Replay

        recorded = Replay(Path(replay))
    if check or reference is not None:
        expected = load_reference(reference or (setup.configs[0] if setup.configs else default))
    if run_dir:
        from forge_host.loop.rundir import check_free

        check_free(Path(run_dir).expanduser().resolve())
    checkpoint = None
    if resume is not None:
        if run_dir:
            raise UsageError("--resume goes on in its own run directory", fix="drop --run-dir")
        checkpoint = _checkpoint(Path(resume))
        setup.configs = (str(Path(resume) / "config.resolved.yaml"), *setup.configs)
    setup.configs = setup.configs or (default,)
    resolved = setup.resolve()
    if examine is not None:
        examine(resolved)
    if expected is not None:
        check_settings(resolved.to_yaml(), expected)
    for lock in (locked, checkpoint and checkpoint.lock):
        if lock:
            _check_lock(setup, lock, allow)
    for record in setup.host.problems:
        print(f"note: plugin `{record.name}` is not loaded: {record.reason}", file=sys.stderr)
    for note in resolved.notes:
        print(f"note: {note}", file=sys.stderr)
    if dry_run:
        from forge_host.cli.plan import print_plan
        from forge_host.loop.preflight import check_signatures

        check_signatures(resolved.plan, setup.host, own_only=True)
        print_plan(resolved, setup.host)
        return None
    from forge_host.loop.run import run as start
    from forge_host.report.summary import print_summary

    summary = start(
        resolved, setup.host, run_dir=run_dir, resume=checkpoint, quiet=quiet, allow=frozenset(allow),
        runner_args={} if recorded is None else {"replay": recorded},
    )  # fmt: skip
    print_summary(summary)
    if expected is not None:
        print(check_run(summary["directory"], expected))
    return summary


def _checkpoint(run_dir: Path) -> Checkpoint:
    from forge_host.loop.checkpoint import newest

    if not (run_dir / "config.resolved.yaml").is_file():
        raise UsageError(f"{run_dir} is not a run directory, as it has no config.resolved.yaml", where="--resume")
    checkpoint = newest(run_dir)
    if checkpoint is None:
        raise UsageError(
            f"{run_dir} has no good checkpoint",
            where="--resume",
            fix="set checkpoint.interval in the run you want to resume",
        )
    return checkpoint


def _check_lock(setup: Setup, file: str | Path, allow: tuple[str, ...]) -> None:
    from forge_host.plugins.lock import PluginLock

    PluginLock.read(file).check(setup.host.lock(), str(file), allow)


def _check_allowed(names: tuple[str, ...]) -> None:
    for name in names:
        kind, _, rest = name.partition(":")
        if name not in ALLOWED and not (rest and kind in ("plugin", "file")):
            raise UsageError(
                f"`{name}` cannot be allowed", where="--allow",
                fix=f"known: {', '.join(ALLOWED)}, plugin:NAME, file:PATH",
            )  # fmt: skip
