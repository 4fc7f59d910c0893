"""`forge-host config show | explain | schema`: what a configuration says, where it came from, and what it may say.

    forge-host config show c.yaml --set training.seed=1
    forge-host config explain c.yaml training.batch_size
    forge-host config schema > schema.json

`show` and `explain` work on configurations that would not run, and say on stderr why they would not.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options


@click.group()
def config() -> None:
    """Show, explain or describe configurations."""


@config.command(context_settings=CONFIG_CONTEXT)
@config_options
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
def show(setup: Setup, as_json: bool) -> None:
    """Print the resolved configuration of CONFIG (default: quickstart): every key with its value."""
    from forge_host.config.files import load_text

    resolved = _resolve(setup)
    text = resolved.to_yaml()
    print(json.dumps(load_text(text, "resolved").plain, indent=2) if as_json else text, end="\n" if as_json else "")


@config.command(context_settings=CONFIG_CONTEXT)
@config_options
@click.option("--json", "as_json", is_flag=True, help="A JSON list of {key, value, source, overrode}.")
def explain(setup: Setup, as_json: bool) -> None:
    """Say where values came from: explain [CONFIG] [KEY]. Without KEY, all of them."""
    from forge_host.config.recipes import find_config
    from forge_host.config.render import explain as rows_of
    from forge_host.errors import UsageError

    key: str | None = None
    if setup.configs:
        *others, last = setup.configs
        try:
            find_config(last)
        except UsageError:
            if others or not last.endswith((".yaml", ".yml")):
                key, setup.configs = last, tuple(others)
    rows = rows_of(_resolve(setup), key)
    if as_json:
        print(json.dumps([_row_data(row) for row in rows], indent=2))
        return
    for row in rows:
        print(f"{row.key}: {_text(row.value)}  <- {row.where}")
        for value, where in row.overrode:
            print(f"    instead of {_text(value)}  <- {where}")


@config.command()
def schema() -> None:
    """Print the JSON schema (draft 2020-12) of a configuration, with the fields of every installed component."""
    from forge_host.config.jsonschema import config_schema
    from forge_host.plugins import PluginHost

    print(json.dumps(config_schema(PluginHost.load(strict=False)), indent=2))


def _resolve(setup: Setup) -> Any:
    """Resolved without stopping at findings, which are printed instead: looking must work on what cannot run."""
    if not setup.configs:
        setup.configs = ("quickstart",)
    resolved = setup.resolve(check=False)
    for finding in resolved.findings:
        if finding.level == "error":
            print(f"this would not run: {finding.message}; {finding.fix}", file=sys.stderr)
    for note in resolved.notes:
        print(f"note: {note}", file=sys.stderr)
    return resolved


def _row_data(row: Any) -> dict[str, Any]:
    lost = [{"value": value, "source": where} for value, where in row.overrode]
    return {"key": row.key, "value": row.value, "source": row.where, "overrode": lost}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
