"""`forge-host`: the group of commands, and the one place where errors become a sentence and an exit code.

Commands are imported when called, so `forge-host --help` is fast and loads neither torch nor monarch. Adding one is a
line in `COMMANDS`; plugins add theirs with the hook `forge_commands`.

    from forge_host.cli.main import main

    exit_code = main(["config", "show", "quickstart"])
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forge_host._version import API_VERSION, __version__
from forge_host.errors import ForgeError, PluginError

if TYPE_CHECKING:
    from forge_host.types import CommandSpec

#: name -> ("module:command", one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("forge_host.cli.run:run", "train: run a configuration or the quickstart"),
    "rerun": ("forge_host.cli.rerun:rerun", "run a run directory again, with exactly its plugins"),
    "sft": ("forge_host.cli.sft:sft", "supervised fine-tuning on a dataset's own responses"),
    "eval": ("forge_host.cli.eval:evaluate", "grade a model on held-out prompts: mean, pass@k"),
    "data": ("forge_host.cli.data:data", "show the prompts a configuration renders, and their tokens"),
    "worker": ("forge_host.cli.worker:worker", "make this machine a host of runs started elsewhere"),
    "config": ("forge_host.cli.config:config", "show, explain or describe configurations"),
    "plugins": ("forge_host.cli.plugins:plugins", "list, examine, validate and lock plugins"),
    "components": ("forge_host.cli.components:components", "list and show what plugins offer"),
    "hooks": ("forge_host.cli.hooks:hooks", "list and show the hooks plugins implement"),
    "bench": ("forge_host.cli.bench:bench", "measure weight sync, the loop and its parts on this machine"),
    "new": ("forge_host.cli.new:new", "write a new plugin package that passes its tests"),
    "report": ("forge_host.cli.report:report", "did it learn: one page on one or several runs"),
    "rollouts": ("forge_host.cli.rollouts:rollouts", "show, filter or browse what a model answered"),
}
#: Print all they have to say: importing structlog, and rich with it, would take these a third longer.
LOG_NOTHING = ("plugins", "components", "hooks", "new")
EPILOG = (
    "Exit codes: 0 done, 2 usage or configuration, 3 plugin, 4 run failed, 130 interrupted. "
    "FORGE_DEBUG=1 shows tracebacks."
)
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed; plugins' commands follow the host's own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(_plugin_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            target, _summary = COMMANDS[cmd_name]
            module, _, attribute = target.partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        offers = _plugin_commands().get(cmd_name, [])
        if len(offers) > 1:
            owners = " and ".join(f"`{plugin}`" for plugin, _spec in offers)
            raise PluginError(f"command `{cmd_name}` is added by the plugins {owners}", fix="uninstall one of them")
        return _load(cmd_name, offers[0][1].target) if offers else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from forge_host.plugins.suggest import did_you_mean

        name = args[0] if args else ""
        if name not in COMMANDS and not name.startswith("-"):
            known = self.list_commands(ctx)
            if name not in known:
                hint = did_you_mean(name, known) or "see forge-host --help"
                raise click.UsageError(f"no command `{name}`; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_target, summary) in COMMANDS.items()])
        extra = _plugin_commands()
        if extra:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, offers[0][1].summary) for name, offers in sorted(extra.items())])


def _plugin_commands() -> dict[str, list[tuple[str, CommandSpec]]]:
    """Commands that installed plugins add, with its plugins; a broken one adds none (`plugins doctor` says why)."""
    from forge_host.plugins import PluginHost

    found: dict[str, list[tuple[str, CommandSpec]]] = {}
    for plugin, spec in PluginHost.load(strict=False).commands():
        if spec.name not in COMMANDS:
            found.setdefault(spec.name, []).append((plugin, spec))
    return found


def _load(name: str, target: str) -> click.Command:
    from forge_host.plugins.targets import resolve

    command = resolve(target, f"command `{name}`")
    if not isinstance(command, click.Command):
        raise PluginError(f"`{target}` is {type(command).__name__}, not a click command", where=f"command `{name}`")
    return command


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="forge-host", message=f"%(prog)s %(version)s, plugin API {API_VERSION}")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Reinforcement-learning post-training of language models, by plugins, on Monarch."""
    if ctx.invoked_subcommand not in LOG_NOTHING:
        from forge_host.runtime.logs import to_stderr

        to_stderr()


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every error a user can cause prints as one sentence."""
    try:
        result = cli.main(args=list(args) if args is not None else None, prog_name="forge-host", standalone_mode=False)
        sys.stdout.flush()
        return result if type(result) is int else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ForgeError as error:
        return _report(error, str(error), error.exit_code)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _report(error, f"this is a bug ({text}, at {place}); FORGE_DEBUG=1 shows the traceback to report", 4)


def _report(error: BaseException, text: str, exit_code: int) -> int:
    if os.environ.get("FORGE_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"error: {text}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
