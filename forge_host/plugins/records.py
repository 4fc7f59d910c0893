"""What is known about a plugin and its components: `Origin`, `PluginRecord`, `Entry`. Plain frozen data.

    for record in discover():
        print(record.name, record.state, record.reason)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import attrs

if TYPE_CHECKING:
    from forge_host.types import ComponentSpec, Kind

#: The entry-point group that plugins of API 1 are found by.
GROUP = "forge_host.plugins"
PREFIX = "forge-plugin-"
BUILTIN = "builtin"

State = Literal["discovered", "blocked", "conflict", "incompatible", "failed", "loaded"]
STATES: tuple[State, ...] = get_args(State)
#: States that need a person; `doctor` explains each.
BROKEN: tuple[State, ...] = ("conflict", "incompatible", "failed")


@attrs.frozen
class Origin:
    """Where a plugin or component comes from.

    Args:
        distribution: name as its author wrote it; "" for a file or a bare module reference.
        version: of the distribution; "" when there is none.
        entry_point: the entry point's value ("forge_plugin_dapo"), a file's path, or a module reference.
        location: folder that the distribution's metadata is in, or the file.
    """

    distribution: str = ""
    version: str = ""
    entry_point: str = ""
    location: str = ""

    def __str__(self) -> str:
        if self.distribution:
            return f"{self.distribution} {self.version}".rstrip()
        return self.entry_point


@attrs.frozen(kw_only=True)
class PluginRecord:
    """One plugin as seen so far.

    Args:
        name: the plugin's name.
        origin: its distribution or file.
        state: "discovered" (installed, not imported), "blocked", "conflict" (two distributions claim the name),
            "incompatible" (another host API), "failed" or "loaded".
        reason: one sentence when the state is "blocked" or one of `BROKEN`.
        api: the FORGE_API it states; None before it is imported.
        import_seconds: time its declaration module took; None before it is imported.
        hooks: names of the hooks it implements, sorted.
        components: "kind:name" of what it declares, sorted.
    """

    name: str
    origin: Origin
    state: State = "discovered"
    reason: str = ""
    api: str | None = None
    import_seconds: float | None = None
    hooks: tuple[str, ...] = ()
    components: tuple[str, ...] = ()

    @property
    def broken(self) -> bool:
        return self.state in BROKEN

    def describe(self) -> str:
        """ "plugin `dapo` (forge-plugin-dapo 0.1.0, entry point `forge_plugin_dapo`)", for error messages."""
        if self.origin.distribution:
            return f"plugin `{self.name}` ({self.origin}, entry point `{self.origin.entry_point}`)"
        return f"plugin `{self.name}` (file {self.origin.entry_point})"


@attrs.frozen
class Entry:
    """A component that can be chosen: its `spec`, who offers it, and from where.

    `plugin` is "" for components named by `pkg.mod:Attr` or `file.py:Attr`.
    """

    kind: Kind
    plugin: str
    spec: ComponentSpec
    origin: Origin

    @property
    def ref(self) -> str:
        """The reference that names this component and no other, in every process of the run."""
        return f"{self.plugin}/{self.spec.name}" if self.plugin else self.spec.target

    def describe(self) -> str:
        """ "loss `dapo/dapo`", for messages; a file is shown by its last part."""
        if self.plugin:
            return f"{self.kind} `{self.ref}`"
        location, _, attribute = self.spec.target.rpartition(":")
        return f"{self.kind} `{Path(location).name if location.endswith('.py') else location}:{attribute}`"
