"""`forge-host plugins list | show | doctor | validate | lock`: what is installed, and whether it is sound.

    forge-host plugins list
    forge-host plugins doctor

`list` reads package metadata and imports no plugin; `--components` and `show` import declaration modules; `validate`
also imports the components themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from forge_host.cli.tables import print_json, print_pairs, print_table

if TYPE_CHECKING:
    from forge_host.plugins import PluginRecord
    from forge_host.plugins.doctor import Problem

json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
PLUGIN_ERROR = 3


@click.group()
def plugins() -> None:
    """List, examine, validate and lock plugins."""


@plugins.command("list")
@click.option("--components", is_flag=True, help="Import the plugins and say what they offer.")
@json_option
def list_plugins(components: bool, as_json: bool) -> None:
    """List installed plugins. Imports none of them without --components."""
    if components:
        from forge_host.plugins.host import PluginHost

        records: Sequence[PluginRecord] = PluginHost.load().records
    else:
        from forge_host.plugins.discovery import discover

        records = discover()
    if as_json:
        print_json([_record_data(record) for record in records])
        return
    heads = ("name", "distribution", "version", "state")
    rows = [(r.name, r.origin.distribution or "(file)", r.origin.version, r.state) for r in records]
    if components:
        heads = (*heads, "components")  # type: ignore[assignment]
        rows = [(*row, " ".join(r.components)) for row, r in zip(rows, records, strict=True)]  # type: ignore[misc]
    print_table(heads, rows)
    if not records:
        click.echo("no plugins are installed; `pip install forge-plugin-NAME` adds one")
    for record in records:
        if record.reason:
            click.echo(f"{record.name}: {record.reason}; run `forge-host plugins doctor`")


@plugins.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one plugin: where it is from, its state, hooks, components and commands."""
    from forge_host.plugins.discovery import discover, normalize
    from forge_host.plugins.host import PluginHost, check_installed
    from forge_host.plugins.records import BUILTIN
    from forge_host.types import KINDS

    check_installed([name], [BUILTIN, *(record.name for record in discover())])
    host = PluginHost.load([name])
    records = [record for record in host.records if record.name == normalize(name)]
    entries = [entry for kind in KINDS for entry in host.entries(kind) if entry.plugin == records[0].name]
    commands = [command for plugin, command in host.commands() if plugin == records[0].name]
    if as_json:
        data = [_record_data(record) for record in records]
        data[0]["offers"] = [
            {"kind": entry.kind, "name": entry.spec.name, "target": entry.spec.target, "summary": entry.spec.summary}
            for entry in entries
        ]
        data[0]["commands"] = [{"name": c.name, "target": c.target, "summary": c.summary} for c in commands]
        print_json(data)
        return
    for record in records:
        seconds = "" if record.import_seconds is None else f"{record.import_seconds * 1000:.0f} ms"
        print_pairs(
            [
                ("plugin", record.name),
                ("distribution", record.origin.distribution or "(file)"),
                ("version", record.origin.version),
                ("entry point", record.origin.entry_point),
                ("location", record.origin.location),
                ("state", record.state),
                ("reason", record.reason),
                ("host API", record.api or ""),
                ("import", seconds),
                ("hooks", ", ".join(record.hooks)),
            ]
        )
    if entries:
        click.echo()
        print_table(("component", "kind", "summary"), [(e.ref, e.kind, e.spec.summary) for e in entries])
    if commands:
        click.echo()
        print_table(("command", "summary"), [(command.name, command.summary) for command in commands])


@plugins.command()
@click.argument("names", nargs=-1)
@click.option("--locked", metavar="FILE", help="Also say what differs from this plugins.lock.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, names: tuple[str, ...], locked: str | None, as_json: bool) -> None:
    """Find what is wrong with the plugins NAMES (all installed), each with its fix. Exit code 3 on an error."""
    from forge_host.plugins.doctor import diagnose
    from forge_host.plugins.lock import PluginLock

    lock = PluginLock.read(locked) if locked else None
    _report(ctx, diagnose(names or None, lock=lock), as_json, "no problems found")


@plugins.command()
@click.argument("name")
@json_option
@click.pass_context
def validate(ctx: click.Context, name: str, as_json: bool) -> None:
    """Check that plugin NAME (or a .py file) keeps every rule. Imports its components: it runs the plugin's code."""
    from forge_host.plugins.validate import validate as check

    _report(ctx, check(name), as_json, f"plugin `{name}` is valid")


@plugins.command()
@click.option("--plugins", "names", metavar="A,B", help="Lock these plugins only.")
@click.option("--no-plugin", "blocked", multiple=True, metavar="NAME", help="Leave this plugin out.")
@click.option("--plugin-file", "files", multiple=True, metavar="FILE.py", help="Lock this one-file plugin too.")
@click.option("--output", "-o", metavar="FILE", help="Write the lock to FILE instead of printing it.")
@click.option("--check", metavar="FILE", help="Compare with FILE; exit code 3 when something differs.")
@click.option("--json", "as_json", is_flag=True, help="JSON for programs; the lock itself is JSON in any case.")
def lock(
    names: str | None,
    blocked: tuple[str, ...],
    files: tuple[str, ...],
    output: str | None,
    check: str | None,
    as_json: bool,
) -> None:
    """Print or write the lock: version and hash of every plugin."""
    from forge_host.plugins.host import PluginHost
    from forge_host.plugins.lock import PluginLock

    expected = PluginLock.read(check) if check else None
    select = None if names is None else names.split(",")
    made = PluginHost.load(select, block=blocked, files=files, strict=True).lock()
    if expected is not None:
        if as_json:
            print_json(expected.differences(made))
        expected.check(made, str(check))
        if not as_json:
            click.echo(f"everything is as {check} says")
    elif output:
        made.write(output)
        if as_json:
            print_json({"wrote": output, "plugins": len(made.plugins)})
        else:
            click.echo(f"wrote {output}: {len(made.plugins)} plugins")
    else:
        click.echo(made.dumps(), nl=False)


def _report(ctx: click.Context, problems: Sequence[Problem], as_json: bool, fine: str) -> None:
    """Prints problems and ends with exit code 3 when one is an error."""
    if as_json:
        import attrs

        print_json([attrs.asdict(problem) for problem in problems])
    else:
        for problem in problems:
            click.echo(f"{problem.level}: {problem.message}\n    fix: {problem.fix}")
        errors = sum(problem.level == "error" for problem in problems)
        click.echo(f"{errors} errors, {len(problems) - errors} warnings" if problems else fine)
    if any(problem.level == "error" for problem in problems):
        ctx.exit(PLUGIN_ERROR)


def _record_data(record: PluginRecord) -> dict[str, Any]:
    import attrs

    data = attrs.asdict(record)
    return {**data.pop("origin"), **data}
