"""What `run`, `config` and every other command with a configuration share: options, plugins, `--trainer.procs 4`.

@click.command(context_settings=CONFIG_CONTEXT)
@config_options
def show(setup: Setup) -> None:
    resolved = setup.resolve()
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from forge_host.config.canonical import ROLES, SECTIONS
from forge_host.plugins.suggest import near

if TYPE_CHECKING:
    from forge_host.config import Resolved
    from forge_host.plugins import PluginHost

F = TypeVar("F", bound=Callable[..., Any])
#: Lets `--trainer.procs 4` through click, to `split_arguments`.
CONFIG_CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": True}


@attrs.define
class Setup:
    """A configuration as the command line asked for it; `resolve` loads the plugins and resolves it."""

    configs: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    options: dict[str, Any] = attrs.field(factory=dict)
    plugins: tuple[str, ...] | None = None
    no_plugins: tuple[str, ...] = ()
    plugin_files: tuple[str, ...] = ()
    _host: PluginHost | None = None

    @property
    def host(self) -> PluginHost:
        """The plugins of this configuration, loaded once."""
        if self._host is None:
            from forge_host.config import load_plugins

            self._host = load_plugins(self.configs, **self._asked())
        return self._host

    def resolve(self, check: bool = True) -> Resolved:
        from forge_host.config import resolve
        from forge_host.config.select import select_plugins

        asked = self._asked()
        chosen = select_plugins(self.configs, **asked)
        # The record of a run must load the same plugins again, so what the command line chose becomes configuration.
        options = {key: getattr(chosen, key) for key, value in asked.items() if value not in (None, ())}
        if self.plugins == ():
            options["plugins"] = ()
        host = self.host
        return resolve(
            self.configs, overrides=self.overrides, options={**self.options, **options}, host=host, check=check
        )

    def _asked(self) -> dict[str, Any]:
        return {"plugins": self.plugins, "no_plugins": self.no_plugins, "plugin_files": self.plugin_files}


def config_options(command: F) -> F:
    """Adds [CONFIG], --config, --set, --plugins, --no-plugin, --plugin-file and --KEY VALUE; passes a `Setup` first."""

    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[CONFIG] [--KEY VALUE]...")
    @click.option("--config", "config_files", multiple=True, metavar="FILE", help="Configuration; several are merged.")
    @click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a configuration key.")
    @click.option("--plugins", metavar="A,B", help="Load these plugins only; '' loads none.")
    @click.option("--no-plugin", multiple=True, metavar="NAME", help="Do not import this plugin.")
    @click.option("--plugin-file", multiple=True, metavar="FILE.py", help="Load a one-file plugin.")
    @click.pass_context
    @functools.wraps(command)
    def wrapper(
        ctx: click.Context, arguments: tuple[str, ...], config_files: tuple[str, ...], overrides: tuple[str, ...],
        plugins: str | None, no_plugin: tuple[str, ...], plugin_file: tuple[str, ...], **rest: Any,
    ) -> Any:  # fmt: skip
        positional, options = split_arguments(ctx, arguments)
        setup = Setup(
            configs=(*positional, *config_files), overrides=overrides, options=options,
            plugins=None if plugins is None else _names(plugins),
            no_plugins=tuple(name for text in no_plugin for name in _names(text)), plugin_files=plugin_file,
        )  # fmt: skip
        return command(setup, **rest)

    return wrapper  # type: ignore[return-value]


def split_arguments(ctx: click.Context, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Positional arguments, and `--a.b value` or `--a.b=value` options by key.

    Raises:
        click.UsageError: an option that is neither the command's nor a configuration key, or one without a value.
    """
    positional: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        top = key.partition(".")[0]
        if not word.startswith("--") or ("." not in key and top not in (*SECTIONS, *ROLES)):
            known = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
            close = near(word.partition("=")[0], [*known, *(f"--{name}" for name in SECTIONS)])
            raise click.NoSuchOption(word.partition("=")[0], possibilities=close or None, ctx=ctx)
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise click.UsageError(f"option --{key} needs a value: --{key} VALUE", ctx)
            value = rest.pop(0)
        options[key] = value
    return positional, options


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
