"""`forge-host rollouts`: what the model answered, filtered, in the terminal, as JSON, or as a page to browse.

forge-host rollouts runs/x --where "reward/math<1 and step>10"
forge-host rollouts runs/x --sort=-reward --limit 5 --full
forge-host rollouts runs/x --where "kind=='train'" --html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--where", metavar="EXPR", help="Keep these, as in 'reward/math<1 and step>10 and \"7\" in response'.")
@click.option("--sort", metavar="NAME", help="Smallest first; --sort=-NAME largest first. Default: newest, in order.")
@click.option("--limit", type=click.IntRange(1), help="Most episodes; 20, or 10000 in a page.")
@click.option("--full", is_flag=True, help="Whole texts instead of one line each.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as recorded.")
@click.option("--html", "page", is_flag=False, flag_value="", default=None, metavar="[FILE]",
              help="Write a page that filters without a server; default RUN/rollouts.html.")  # fmt: skip
@click.option("--names", is_flag=True, help="List what --where and --sort may name.")
def rollouts(
    run: str,
    where: str | None,
    sort: str | None,
    limit: int | None,
    full: bool,
    as_json: bool,
    page: str | None,
    names: bool,
) -> None:
    """Show what a run's model answered: prompts, responses, reward parts, kept or dropped and why."""
    if sum((as_json, page is not None, names, full)) > 1:
        raise click.UsageError("--json, --html, --full and --names are different answers; choose one")
    from forge_host.report.rollouts import FIELDS, select
    from forge_host.report.rundata import load_run

    loaded = load_run(run)
    found = select(loaded, where, sort, limit or (10_000 if page is not None else 20))
    if names:
        from forge_host.cli.tables import print_table
        from forge_host.report.metrics import describe

        meaning = {n: FIELDS.get(n) or ((m.help + " (of the step)") if (m := describe(n)) else "") for n in found.names}
        print_table(("name", "meaning"), [(n, meaning[n] or "reward part") for n in found.names])
        return
    if page is not None:
        from forge_host.cli.tables import size
        from forge_host.report.rollouts_page import write_page

        path = write_page(loaded, found, page or None)
        print(f"{path} ({len(found.rows)} episodes, {size(path)})")
        return
    if as_json:
        for row in found.rows:
            print(json.dumps(row, ensure_ascii=False))
        return
    if full:
        for row in found.rows:
            _print_whole(row)
    else:
        _print_lines(found.rows)
    of = f"{found.matched} of {found.total} episodes match" if where else f"{found.total} episodes"
    print(f"{of}, {len(found.rows)} shown" if len(found.rows) < found.matched else of)
    for note in loaded.notes:
        print(f"note: {note}")


def _print_lines(rows: list[Mapping[str, Any]]) -> None:
    from forge_host.cli.tables import print_table
    from forge_host.report.html import prompt_text

    table = [
        (
            str(row.get("step")), str(row.get("kind")), _reward(row), _parts(row), str(row.get("num_tokens")),
            str(row.get("finish_reason")), _short(prompt_text(row), 48), _short(str(row.get("response")), 72),
        )
        for row in rows
    ]  # fmt: skip
    print_table(("step", "kind", "reward", "parts", "tokens", "finish", "prompt", "response"), table)


def _print_whole(row: Mapping[str, Any]) -> None:
    from forge_host.report.html import prompt_text

    version = (row.get("policy_versions") or ["-"])[-1]
    print(f"--- step {row.get('step')}, {row.get('kind')}, {row.get('id')}, policy version {version}")
    print(f"prompt: {prompt_text(row)}")
    if row.get("target") is not None:
        print(f"target: {row['target']}")
    print(f"response ({row.get('num_tokens')} tokens, {row.get('finish_reason')}): {row.get('response')}")
    print(f"reward: {_reward(row)}  {_parts(row)}")
    for key in ("note", "error"):
        if row.get(key):
            print(f"{key}: {row[key]}")
    if not row.get("kept") and row.get("reason"):
        print(f"not trained on: {row['reason']}")


def _reward(row: Mapping[str, Any]) -> str:
    return "error" if row.get("reward") is None else f"{row['reward']:.3g}"


def _parts(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value:.3g}" for name, value in (row.get("parts") or {}).items())


def _short(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
