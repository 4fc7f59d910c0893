"""Which plugins a configuration wants, found out before anything is validated, and their loading.

    host = load_plugins(["c.yaml"], no_plugins=["wandb"])

`plugins:` of the configuration counts unless the command line has `--plugins`; `no_plugins:` and `plugin_files:` add
to what the command line says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from forge_host.config.paths import find_path
from forge_host.config.recipes import ConfigName, read_config
from forge_host.config.source import Item
from forge_host.errors import UsageError

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost

Configs = ConfigName | Sequence[ConfigName] | None


@attrs.frozen(kw_only=True)
class Selection:
    """Names of plugins to load (None: every installed one) and not to load, and paths of one-file plugins."""

    plugins: tuple[str, ...] | None = None
    no_plugins: tuple[str, ...] = ()
    plugin_files: tuple[str, ...] = ()


def select_plugins(
    configs: Configs = None,
    *,
    plugins: Sequence[str] | None = None,
    no_plugins: Sequence[str] = (),
    plugin_files: Sequence[str] = (),
) -> Selection:
    """What the files and the command line together ask for; arguments as for `load_plugins`."""
    chosen = None if plugins is None else tuple(plugins)
    blocked, files = list(no_plugins), [str(find_path(file, None) or file) for file in plugin_files]
    for config in reversed(read_config(configs)):
        keys = config.mapping or {}
        if chosen is None and "plugins" in keys and keys["plugins"].value is not None:
            chosen = tuple(_names("plugins", keys["plugins"]))
        if "no_plugins" in keys:
            blocked = [*_names("no_plugins", keys["no_plugins"]), *blocked]
        if "plugin_files" in keys:
            source = keys["plugin_files"].source
            files = [*(str(find_path(f, source) or f) for f in _names("plugin_files", keys["plugin_files"])), *files]
    return Selection(plugins=chosen, no_plugins=tuple(dict.fromkeys(blocked)), plugin_files=tuple(dict.fromkeys(files)))


def load_plugins(
    configs: Configs = None,
    *,
    plugins: Sequence[str] | None = None,
    no_plugins: Sequence[str] = (),
    plugin_files: Sequence[str] = (),
    strict: bool = True,
) -> PluginHost:
    """The plugins that a run of `configs` loads.

    Args:
        plugins: `--plugins`: wins over the configuration's list; empty loads none, None leaves it to the configuration.
        no_plugins: `--no-plugin`, in addition to the configuration's.
        plugin_files: `--plugin-file`, in addition to the configuration's.
        strict: a selected plugin that cannot be loaded is a `PluginError`.
    """
    from forge_host.plugins import PluginHost

    chosen = select_plugins(configs, plugins=plugins, no_plugins=no_plugins, plugin_files=plugin_files)
    return PluginHost.load(chosen.plugins, chosen.no_plugins, chosen.plugin_files, strict)


def _names(key: str, item: Item) -> list[str]:
    value = [] if item.value is None else item.plain
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"`{key}` must be a list of names, got {value!r}", where=item.source.where)
    return [name.strip() for name in names if name.strip()]
