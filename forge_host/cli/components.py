"""`forge-host components list | show`: what can be named in a configuration, and its settings.

    forge-host components list loss
    forge-host components show dapo/dapo
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from forge_host.cli.tables import print_json, print_pairs, print_table
from forge_host.errors import ForgeError, PluginError, UsageError

if TYPE_CHECKING:
    from forge_host.plugins import Entry, PluginHost
    from forge_host.plugins.fields import FieldRow

json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


@click.group()
def components() -> None:
    """List and show what plugins offer."""


@components.command("list")
@click.argument("kind", required=False)
@json_option
def list_components(kind: str | None, as_json: bool) -> None:
    """List the components of every installed plugin, or those of one KIND. Broken plugins are named and left out."""
    host = _browse()
    entries = _all(host) if kind is None else host.entries(kind)  # type: ignore[arg-type]
    if as_json:
        print_json([_entry_data(entry) for entry in entries])
        return
    names = [(entry.kind, entry.spec.name) for entry in entries]
    rows = [
        # The name to write: the bare one while it is unique.
        (e.spec.name if names.count((e.kind, e.spec.name)) == 1 else e.ref, e.kind, e.plugin, e.spec.summary)
        for e in entries
    ]
    print_table(("name", "kind", "plugin", "summary"), rows)
    if not rows:
        click.echo(f"no installed plugin offers a {kind}" if kind else "no installed plugin offers a component")


@components.command()
@click.argument("words", metavar="[KIND] REF", nargs=-1, required=True)
@click.option("--kind", help="Only of this kind, where one name has several.")
@json_option
def show(words: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """Show component REF: its settings with type, default, bounds, unit and help, and where its code is.

    A KIND (loss, reward, ...) before it is the same as --kind.
    """
    from forge_host.types import KINDS

    *before, ref = words
    if before and (len(before) > 1 or before[0] not in KINDS or kind not in (None, before[0])):
        raise UsageError(f"`{' '.join(words)}` is not [KIND] REF", fix=f"show one at a time; kinds: {', '.join(KINDS)}")
    kind = before[0] if before else kind
    found = _find(_browse(), ref, kind)
    if as_json:
        print_json([{**_entry_data(entry), **_settings_data(entry)} for entry in found])
        return
    for number, entry in enumerate(found):
        if number:
            click.echo()
        _print_entry(entry)


def _browse() -> PluginHost:
    from forge_host.plugins.host import PluginHost

    host = PluginHost.load()
    for record in host.problems:
        click.echo(f"plugin `{record.name}` is left out: {record.reason}; run `forge-host plugins doctor`", err=True)
    return host


def _all(host: PluginHost) -> list[Entry]:
    from forge_host.types import KINDS

    return [entry for kind in KINDS for entry in host.entries(kind)]


def _find(host: PluginHost, ref: str, kind: str | None) -> list[Entry]:
    """The components that `ref` names, one a kind; the error of an unknown name has near matches of every kind."""
    from forge_host.plugins import references
    from forge_host.plugins.suggest import did_you_mean

    if references.is_direct(ref) or kind is not None:
        return [host.find(kind or "reward", ref)]  # type: ignore[arg-type]
    plugin, _, name = ref.rpartition("/")
    found = [entry for entry in _all(host) if entry.spec.name == name and plugin in ("", entry.plugin)]
    if found:
        return found
    known = [entry.ref if plugin else entry.spec.name for entry in _all(host)]
    fix = did_you_mean(ref, known) or "`forge-host components list` shows what there is"
    raise PluginError(f"no component is named `{ref}`", fix=fix)


def _print_entry(entry: Entry) -> None:
    from forge_host.plugins.targets import locate, missing_modules

    spec = entry.spec
    missing = missing_modules(spec.requires)
    requires = ", ".join(f"{name} (not installed)" if name in missing else name for name in spec.requires)
    click.echo(f"{entry.kind} {entry.ref}: {spec.summary}" if entry.plugin else f"{entry.ref}")
    print_pairs(
        [
            ("from", str(entry.origin) if entry.plugin else ""),
            ("target", spec.target),
            ("file", locate(spec.target)),
            ("config", spec.config or ""),
            ("requires", requires),
            ("needs", ", ".join(spec.needs)),
            ("since", f"host API {spec.since}"),
        ]
    )
    try:
        rows = _settings(entry)
    except ForgeError as error:
        click.echo(f"its settings cannot be shown here: {error}")
        return
    if not rows:
        click.echo("it has no settings")
        return
    click.echo()
    heads = ("setting", "type", "default", "bounds", "unit", "help")
    table = [(row.name, row.type, row.default, row.bounds, row.unit, row.help) for row in rows]
    # Columns without content cost width that the help needs.
    used = [i for i in range(len(heads)) if i < 3 or any(row[i] for row in table)]
    print_table([heads[i] for i in used], [[row[i] for i in used] for row in table])


def _settings(entry: Entry) -> Sequence[FieldRow]:
    from forge_host.plugins.building import config_class, load_target
    from forge_host.plugins.fields import FieldRow, describe, type_name

    cls = config_class(entry)
    if cls is not None:
        return describe(cls)
    target: Any = load_target(entry)
    if not isinstance(target, type):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        FieldRow(
            parameter.name,
            "anything" if parameter.annotation is parameter.empty else type_name(parameter.annotation),
            "required" if parameter.default is parameter.empty else repr(parameter.default),
            "",
            "",
            "",
        )
        for parameter in inspect.signature(target).parameters.values()
        if parameter.kind in kinds
    ]


def _entry_data(entry: Entry) -> dict[str, Any]:
    import attrs

    from forge_host.plugins.targets import locate

    data = attrs.asdict(entry.spec)
    origin = {"distribution": entry.origin.distribution, "version": entry.origin.version}
    names = {"kind": entry.kind, "ref": entry.ref, "plugin": entry.plugin}
    return {**names, **data, **origin, "file": locate(entry.spec.target)}


def _settings_data(entry: Entry) -> dict[str, Any]:
    import attrs

    try:
        return {"settings": [attrs.asdict(row) for row in _settings(entry)]}
    except ForgeError as error:
        return {"settings": None, "error": str(error)}
