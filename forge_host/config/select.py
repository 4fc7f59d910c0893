"""Which plugins a configuration wants, found out before anything is validated, and their loading.

    host = load_plugins(["c.yaml"], no_plugins=["wandb"])

`plugins:`, `no_plugins:` and `plugin_files:` of the configuration count unless the command line says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forge_host.config.paths import find_path
from forge_host.config.recipes import ConfigName, read_config
from forge_host.config.source import Item
from forge_host.errors import UsageError

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost


def load_plugins(
    configs: ConfigName | Sequence[ConfigName] | None = None,
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

    wanted: dict[str, Any] = {"plugins": None, "no_plugins": [], "plugin_files": []}
    for config in read_config(configs):
        for key in wanted:
            item = (config.mapping or {}).get(key)
            if item is not None:
                wanted[key] = _names(key, item)
    files = list(dict.fromkeys([*wanted["plugin_files"], *plugin_files]))
    return PluginHost.load(
        wanted["plugins"] if plugins is None else plugins, (*wanted["no_plugins"], *no_plugins), files, strict
    )


def _names(key: str, item: Item) -> list[str] | None:
    if item.value is None:
        return None if key == "plugins" else []
    value = item.plain
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"`{key}` must be a list of names, got {value!r}", where=item.source.where)
    found = [name.strip() for name in names if name.strip()]
    return [str(find_path(name, item.source) or name) for name in found] if key == "plugin_files" else found
