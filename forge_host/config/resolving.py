"""From a configuration file, overrides and loaded plugins to a checked run: `resolve`.

    host = load_plugins(["quickstart"])
    resolved = resolve("quickstart", overrides=["training.seed=1"], host=host)
    print(resolved.to_yaml())

Order: defaults < algorithm preset < files (left to right) < command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.config.assemble import Assembler
from forge_host.config.canonical import DEFAULTS, SECTIONS, canonical
from forge_host.config.merge import merge
from forge_host.config.overrides import from_command_line
from forge_host.config.plan import Plan
from forge_host.config.recipes import ConfigName, read_config
from forge_host.config.rules import run_checks
from forge_host.config.schema import RunConfig
from forge_host.config.sections import Reader, unknown_key
from forge_host.config.source import DEFAULT, Item, Source, tree
from forge_host.errors import PluginError, UsageError
from forge_host.types import Finding

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost

#: The default lists are a layer of their own, so that `--set rewards.0.weight=2` finds what it changes.
_LISTS = tree(
    {
        "rewards": [{"use": use.ref, "weight": weight} for use, weight in DEFAULTS.rewards],
        "trackers": [use.ref for use in DEFAULTS.trackers],
    },
    DEFAULT,
)
Configs = ConfigName | Sequence[ConfigName] | None


@attrs.frozen(kw_only=True)
class Resolved:
    """A run, resolved and checked.

    Args:
        config: every key with its value, defaults included.
        plan: the components and what they need.
        provenance: dotted key to the source of its value.
        notes: what a user should know: keys dropped, components replaced, findings that are no errors.
        findings: everything the checks said.
    """

    config: RunConfig
    plan: Plan
    provenance: Mapping[str, Source]
    notes: list[str] = attrs.field(factory=list)
    findings: tuple[Finding, ...] = ()

    def to_yaml(self) -> str:
        """The text of `config.resolved.yaml`; resolving it gives an equal `config` and `plan`."""
        from forge_host.config.render import to_yaml

        return to_yaml(self)


def resolve(
    config: Configs,
    *,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    host: PluginHost,
    check: bool = True,
) -> Resolved:
    """Read, merge, validate and check a configuration.

    Args:
        config: path of a YAML file or name of a shipped recipe; several are merged left to right; None is an empty one.
        overrides: `key=value` texts of `--set`.
        options: dotted keys and values of `--trainer.procs 4` options; they win over `overrides`.
        host: loaded plugins.
        check: raise for findings of level "error"; without it they are only listed in `findings`.

    Raises:
        UsageError: unreadable file, unknown key, wrong type, illegal combination.
        PluginError: a component that is not there or is offered twice.
    """
    files = read_config(config)
    layers = [*files, from_command_line(overrides, options)]
    merged, notes = merge([_LISTS, *(canonical(layer, lambda name: _is_algorithm(host, name)) for layer in layers)])
    top = merged.mapping or {}
    _refuse_unknown(top, host)
    reader = Reader(host)
    reader.notes.extend(notes)
    plan = Assembler(reader, top, files).run()
    findings = [*run_checks(plan), *host.hooks.forge_check_plan(plan, host.info)]
    for finding in findings:
        if check and finding.level == "error":
            raise UsageError(finding.message, where=_where(finding, reader.provenance), fix=finding.fix or None)
    reader.notes.extend(f"{f.message}; {f.fix}" if f.fix else f.message for f in findings if f.level != "error")
    return Resolved(
        config=plan.config, plan=plan, provenance=dict(sorted(reader.provenance.items())), notes=reader.notes,
        findings=tuple(findings),
    )  # fmt: skip


_KEY = re.compile(r"\b[a-z_]\w*(?:\.\w+)+\b|`([a-z_]\w*)`")


def _where(finding: Finding, provenance: Mapping[str, Source]) -> str | None:
    """Where the first key that a finding names was written by the user; None when each is a default."""
    for found in _KEY.finditer(f"{finding.message} {finding.fix}"):
        name = found.group(1) or found.group()
        for key, source in provenance.items():
            if (key == name or key.startswith(f"{name}.")) and source.layer in ("file", "command line"):
                return source.where
    return None


def _is_algorithm(host: PluginHost, name: str) -> bool:
    try:
        host.find("algorithm", name)
    except PluginError:
        # Offered twice: still an algorithm, and choosing it gives the error that says so.
        return any(entry.spec.name == name for entry in host.entries("algorithm"))
    return True


def _refuse_unknown(top: Mapping[str, Item], host: PluginHost) -> None:
    for name, item in top.items():
        if name in SECTIONS:
            continue
        algorithms = [entry.spec.name for entry in host.entries("algorithm")]
        error = unknown_key(name, name, item, [*SECTIONS, *algorithms], "config key")
        unusable = next((record for record in host.records if record.name == name and record.reason), None)
        if unusable is not None:
            raise PluginError(
                f"section `{name}` belongs to {unusable.describe()}, which is not loaded: {unusable.reason}",
                where=error.where, fix="run `forge-host plugins doctor`",
            )  # fmt: skip
        if item.mapping is not None and not (error.fix or "").startswith("did you mean"):
            loaded = ", ".join(f"`{name}`" for name in algorithms) or "none"
            error = UsageError(
                f"section `{name}` is neither a part of the configuration nor a loaded algorithm ({loaded})",
                where=error.where, fix=f"remove it, or install its plugin (pip install forge-plugin-{name})",
            )  # fmt: skip
        raise error
