"""The command-line reference: every command with its options, read from click.

page()
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import click

from forge_host.cli.main import COMMANDS, EPILOG, cli
from forge_host.docs.markdown import NOTE, cell, code, table
from forge_host.docs.plugins import first_party


def commands() -> Iterator[tuple[str, click.Command]]:
    """(words after `forge-host`, command), groups before their commands; those of first-party plugins last."""
    targets = {name: target for name, (target, _summary) in COMMANDS.items()}
    targets |= {spec.name: spec.target for _plugin, spec in first_party().commands()}
    for name, target in targets.items():
        module, _, attribute = target.partition(":")
        yield from _below(name, getattr(import_module(module), attribute))


def _below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name=name)
        for child in command.list_commands(ctx):
            found = command.get_command(ctx, child)
            if found is not None:
                yield from _below(f"{name} {child}", found)


def page() -> str:
    """`reference/cli.md`."""
    out = ["# Command line\n", NOTE, f"{EPILOG}\n", _options(cli)]
    rows = [(f"[`{n}`](#{_anchor(n)})", cell(_short(c))) for n, c in commands() if not isinstance(c, click.Group)]
    out.append(table(("command", "what it does"), rows))
    for name, command in commands():
        if not isinstance(command, click.Group):
            out += [f"## forge-host {name} {{ #{_anchor(name)} }}\n", _section(name, command)]
    return "\n".join(out)


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _short(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").split("\n\n")[0]


def _section(name: str, command: click.Command) -> str:
    ctx = click.Context(command, info_name=f"forge-host {name}")
    usage = " ".join(command.collect_usage_pieces(ctx))
    text = inspect.cleandoc(command.help or "")
    return f"```text\nforge-host {name} {usage}\n```\n\n{cell(text)}\n\n{_options(command)}"


def _options(command: click.Command) -> str:
    rows = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            value = "" if parameter.is_flag else f" {parameter.make_metavar(click.Context(command))}"
            default = "" if parameter.default in (None, False, ()) or not parameter.show_default else parameter.default
            many = " May be given several times." if parameter.multiple else ""
            rows.append((code(names + value), code(str(default)), cell((parameter.help or "") + many)))
    return table(("option", "default", "what it does"), rows) if rows else ""
