"""`forge-host run`: resolve a configuration, then train; `--dry-run` prints the plan and starts nothing.

    forge-host run quickstart
    forge-host run c.yaml --plugins dapo,math --set training.max_steps=20 --trainer.procs 4
"""

from __future__ import annotations

import sys

import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options


@click.command(context_settings=CONFIG_CONTEXT)
@config_options
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing.")
@click.option("--locked", type=click.Path(), metavar="FILE", help="Refuse plugins that differ from this plugins.lock.")
@click.option("--run-dir", metavar="DIR", help="Make exactly this run directory.")
@click.option("--quiet", is_flag=True, help="No live progress; only the summary.")
def run(setup: Setup, dry_run: bool, locked: str | None, run_dir: str | None, quiet: bool) -> None:
    """Train. CONFIG is a YAML file or a recipe's name (default: quickstart)."""
    if not setup.configs:
        setup.configs = ("quickstart",)
    resolved = setup.resolve()
    if locked:
        _check_lock(setup, locked)
    for note in resolved.notes:
        print(f"note: {note}", file=sys.stderr)
    if dry_run:
        from forge_host.cli.plan import plan_lines

        print("\n".join(plan_lines(resolved)))
        return
    from forge_host.loop.run import run as start

    summary = start(resolved, setup.host, run_dir=run_dir, quiet=quiet)
    from forge_host.report.summary import print_summary

    print_summary(summary)


def _check_lock(setup: Setup, file: str) -> None:
    from forge_host.plugins.lock import PluginLock

    PluginLock.read(file).check(setup.host.lock(), file)
