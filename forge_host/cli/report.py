"""`forge-host report`: one page on one or several runs, finished or not.

forge-host report runs/quickstart-20261201-111745
forge-host report runs/a runs/b --out compare.html
"""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN ...]")
@click.option("--out", metavar="FILE", help="Write here instead of report.html in the first run's directory.")
@click.option("--brief", is_flag=True, help="Print the verdict and the findings; write nothing.")
def report(runs: tuple[str, ...], out: str | None, brief: bool) -> None:
    """Did it learn, and is anything wrong: write report.html, one file that needs no network."""
    if brief:
        from forge_host.report.brief import print_brief

        for run in runs:
            print_brief(run)
        return
    from forge_host.cli.tables import size
    from forge_host.report.html import write_report

    path = write_report(runs, out)
    print(f"{path} ({size(path)})")
