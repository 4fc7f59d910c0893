"""`forge-host rerun`: a run once more, from its own configuration and with exactly its plugins, in a fresh directory.

    forge-host rerun runs/quickstart-20261201-120000
"""

from __future__ import annotations

from pathlib import Path

import click

from forge_host.cli.common import Setup
from forge_host.cli.run import train
from forge_host.errors import UsageError


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing.")
@click.option("--quiet", is_flag=True, help="No live progress; only the summary.")
def rerun(run: str, dry_run: bool, quiet: bool) -> None:
    """Run RUN, a run directory, again. Plugins that differ from its plugins.lock are refused."""
    config, lock = Path(run) / "config.resolved.yaml", Path(run) / "plugins.lock"
    for file in (config, lock):
        if not file.is_file():
            raise UsageError(f"{run} is not a run directory, as it has no {file.name}", where="rerun")
    setup = Setup(configs=(str(config),))
    train(setup, str(config), dry_run=dry_run, resume=None, locked=str(lock), run_dir=None, quiet=quiet)
