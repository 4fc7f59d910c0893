"""`forge-host hooks list | show`: the hooks a plugin may implement, and who implements them here.

    forge-host hooks show forge_step_finished
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from forge_host.cli.tables import print_json, print_pairs, print_table
from forge_host.errors import PluginError

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost

json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


@click.group()
def hooks() -> None:
    """List and show the hooks plugins implement."""


@hooks.command("list")
@json_option
def list_hooks(as_json: bool) -> None:
    """List every hook in the order a run calls them, with the plugins that implement it."""
    from forge_host.hookspecs import HOOKS
    from forge_host.plugins.host import PluginHost

    host = PluginHost.load()
    data = [_hook_data(host, name) for name in HOOKS]
    if as_json:
        print_json(data)
        return
    rows = [(d["name"], d["type"], ", ".join(d["plugins"]), d["summary"].partition(" (`")[0]) for d in data]
    print_table(("hook", "type", "plugins", "what it is for"), rows)


@hooks.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show hook NAME: its arguments, what it is for, and the plugins in the order they are called."""
    from forge_host.hookspecs import HOOKS, ForgeSpecs
    from forge_host.plugins.host import PluginHost
    from forge_host.plugins.suggest import did_you_mean

    if name not in HOOKS:
        fix = did_you_mean(name, HOOKS) or "`forge-host hooks list` shows them"
        raise PluginError(f"no hook is named `{name}`", fix=fix)
    data = _hook_data(PluginHost.load(), name)
    if as_json:
        print_json(data)
        return
    click.echo(f"{data['signature']}\n")
    click.echo(f"{inspect.getdoc(getattr(ForgeSpecs, name))}\n")
    print_pairs(
        [
            ("type", data["type"]),
            ("since", f"host API {data['since']}"),
            ("deprecated", data["deprecated"]),
            ("called in order", ", ".join(data["plugins"]) or "no installed plugin implements it"),
        ]
    )


def _hook_data(host: PluginHost, name: str) -> dict[str, Any]:
    from forge_host.hookspecs import DECLARATION_HOOKS, ForgeSpecs

    spec = getattr(ForgeSpecs, name)
    signature = inspect.signature(spec)
    arguments = [f"{key}: {parameter.annotation}" for key, parameter in signature.parameters.items() if key != "self"]
    text = f"{name}({', '.join(arguments)}) -> {signature.return_annotation}"
    return {
        "name": name,
        "type": "declaration" if name in DECLARATION_HOOKS else "observer",
        "signature": text,
        "summary": (inspect.getdoc(spec) or "").splitlines()[0],
        "since": spec.forge_since,
        "deprecated": spec.forge_deprecated,
        "plugins": host.hooks.order(name),
    }
