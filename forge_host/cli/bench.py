"""`forge-host bench`: what the parts cost on this machine, each against a plain measure of the same run.

    forge-host bench sync --models 135M --json

A benchmark is imported when it is called; adding one is a line in `BENCHES` and a module with its command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

#: name -> ("module:command", one line of help)
BENCHES: dict[str, tuple[str, str]] = {
    "generate": ("forge_host.cli.bench_generate:generate", "generation in the host against the engine alone"),
    "sync": ("forge_host.cli.bench_sync:sync", "weight-sync transports against plain copies of the same bytes"),
    "loop": ("forge_host.cli.bench_loop:loop", "a step taken apart: generation, training, their sum, whole steps"),
    "train": ("forge_host.cli.bench_train:train", "the trainer alone: tokens/s, MFU, memory, where a step's time goes"),
}


class Benches(click.Group):
    """A group that imports a benchmark when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BENCHES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHES:
            return None
        module, _, attribute = BENCHES[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from forge_host.plugins.suggest import did_you_mean

        name = args[0] if args else ""
        if name not in BENCHES and not name.startswith("-"):
            hint = did_you_mean(name, list(BENCHES)) or "see forge-host bench --help"
            raise click.UsageError(f"no benchmark `{name}`; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Benchmarks"):
            formatter.write_dl([(name, summary) for name, (_target, summary) in BENCHES.items()])


@click.group(cls=Benches)
def bench() -> None:
    """Measure a part of the host on this machine."""
