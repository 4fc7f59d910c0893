"""From a configuration file, overrides and loaded plugins to a checked run: `resolve`.

    host = load_plugins(["quickstart"])
    resolved = resolve("quickstart", overrides=["training.seed=1"], host=host)
    print(resolved.to_yaml())

Order: defaults < algorithm preset < files (left to right) < command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.config import choose
from forge_host.config.canonical import ROLES, SECTIONS, SERVICE_KEYS, canonical
from forge_host.config.merge import DEFAULT_REFS, merge
from forge_host.config.merge import DEFAULTS as _DEFAULTS
from forge_host.config.model import model_part
from forge_host.config.overrides import from_command_line
from forge_host.config.paths import find_path
from forge_host.config.plan import Part, Plan, with_needs
from forge_host.config.recipes import ConfigName, read_config
from forge_host.config.rules import run_checks
from forge_host.config.schema import (
    CheckpointConfig,
    MonarchConfig,
    ParallelismConfig,
    RewardConfig,
    RoleConfig,
    RunConfig,
    ServiceConfig,
    TrainingConfig,
)  # fmt: skip
from forge_host.config.sections import Reader, unknown_key
from forge_host.config.source import DEFAULT, Item, Source, tree
from forge_host.errors import PluginError, UsageError
from forge_host.plugins.fields import field_types
from forge_host.types import Finding

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost

#: The default lists are a layer of their own, so that `--set rewards.0.weight=2` finds what it changes.
_LISTS = tree(
    {
        "rewards": [{"use": use.ref, "weight": weight} for use, weight in _DEFAULTS.rewards],
        "trackers": [use.ref for use in _DEFAULTS.trackers],
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
    plan = _Resolver(reader, top, files).run()
    findings = [*run_checks(plan), *host.hooks.forge_check_plan(plan, host.info)]
    for finding in findings:
        if check and finding.level == "error":
            raise UsageError(finding.message, fix=finding.fix or None)
    reader.notes.extend(f"{f.message}; {f.fix}" if f.fix else f.message for f in findings if f.level != "error")
    return Resolved(
        config=plan.config, plan=plan, provenance=dict(sorted(reader.provenance.items())), notes=reader.notes,
        findings=tuple(findings),
    )  # fmt: skip


class _Resolver:
    """The steps of one resolve, in the order in which they depend on each other."""

    def __init__(self, reader: Reader, top: Mapping[str, Item], files: Sequence[Item]) -> None:
        self.reader, self.top, self.files = reader, top, files

    def run(self) -> Plan:
        reader, top = self.reader, self.top
        if "model" not in top:
            raise UsageError(
                "config key `model` is required", where=self.files[-1].source.where if self.files else None,
                fix="add `model: FOLDER`, a hub name or a model component, or --set model=...",
            )  # fmt: skip
        scalars = self.scalars()
        model = model_part(scalars["model"], reader.host, top["model"].source)
        if model.origin == "folder":
            scalars["model"] = model.use.ref
        algorithm, parts = choose.algorithm(
            reader, top.get("algorithm", Item({"use": Item(DEFAULT_REFS["algorithm"], DEFAULT)}, DEFAULT))
        )
        preset = Source("preset", f"algorithm preset {algorithm.name}", rank=-1)
        chosen: dict[str, Any] = {}
        replaced: dict[str, Any] = {}
        for kind, use in (("loss", parts.loss), ("advantage", parts.advantage), ("sampler", parts.sampler)):
            part, given = choose.replaceable(reader, kind, use, top.get(kind), preset)  # type: ignore[arg-type]
            chosen[kind] = part
            if given:
                replaced[kind] = part.use
        for key, value in (
            ("aggregation", parts.aggregation), ("kl", parts.kl), ("correction", parts.correction), ("sampling", parts.sampling),
        ):  # fmt: skip
            chosen[key], replaced[key] = choose.settings(reader, key, value, top.get(key), preset)
        shaping = tuple(
            reader.component(
                reader.find("reward", Item(use.ref, preset), "shaping"), f"shaping.{index}", tree(use.config, preset).value
            )
            for index, use in enumerate(parts.shaping)
        )
        dataset, dataset_config = choose.dataset(reader, choose.mapping("dataset", top.get("dataset")), DEFAULT_REFS["dataset"])
        roles, moved = self.roles()
        rewards = self.rewards()
        training = self.training(parts.entropy_coef, preset)
        trackers = tuple(part for part, _ in choose.listed(reader, "tracker", "trackers", top["trackers"], False))
        reward_items, reward_service = self.split_reward()
        config = RunConfig(
            **scalars, **replaced,
            algorithm=algorithm.ref, algorithm_config=algorithm.use.config, dataset=dataset_config,
            rewards=tuple((part.use, weight) for part, weight in rewards),
            reward=reader.section(RewardConfig, "reward", reward_items),
            training=training,
            generator=role_config(roles["generator"]),
            trainer=role_config(roles["trainer"]),
            transport=role_config(roles["transport"]),
            launcher=role_config(roles["launcher"]),
            trackers=tuple(part.use for part in trackers),
            services=self.services({**moved, "reward": reward_service}),
            parallelism=self.section(ParallelismConfig, "parallelism"),
            monarch=self.section(MonarchConfig, "monarch"),
            checkpoint=self.section(CheckpointConfig, "checkpoint"),
        )  # fmt: skip
        plan = Plan(
            config=config, algorithm=algorithm, model=model, dataset=dataset, rewards=rewards, shaping=shaping, **chosen,
            generator=roles["generator"], trainer=roles["trainer"], transport=roles["transport"],
            launcher=roles["launcher"], trackers=trackers, entropy_coef=training.entropy_coef, mask_truncated=parts.mask_truncated,
        )  # fmt: skip
        return with_needs(plan)

    def section(self, cls: type[Any], key: str) -> Any:
        return self.reader.section(cls, key, choose.mapping(key, self.top.get(key)))

    def scalars(self) -> dict[str, Any]:
        """The keys that are no sections."""
        hints = field_types(RunConfig)
        values = {}
        for key in ("model", "run_dir", "name", "plugins", "no_plugins", "plugin_files"):
            item = self.top.get(key)
            if item is not None:
                values[key] = self.reader.value(key, item, hints[key])
        if "plugin_files" in values:
            source = self.top["plugin_files"].source
            values["plugin_files"] = tuple(str(find_path(file, source) or file) for file in values["plugin_files"])
        if not values.get("name"):
            stem = Path(self.files[-1].source.where).stem if self.files else "run"
            values["name"] = stem
            self.reader.provenance["name"] = Source("default", "name of the configuration")
        self.reader.defaults("", ("run_dir", "plugins", "no_plugins", "plugin_files"))  # type: ignore[arg-type]
        return values

    def roles(self) -> tuple[dict[str, Part], dict[str, dict[str, Item]]]:
        parts: dict[str, Part] = {}
        moved: dict[str, dict[str, Item]] = {}
        for kind in ("generator", "trainer", "transport", "launcher"):
            items = choose.mapping(kind, self.top.get(kind))
            parts[kind], service = choose.role(self.reader, kind, items, DEFAULT_REFS[kind])
            if kind in ROLES:
                moved[kind] = service
            elif service:
                name, item = next(iter(service.items()))
                raise UsageError(f"`{kind}.{name}` is unknown, as {kind} has no processes of its own", where=item.source.where)
        return parts, moved

    def rewards(self) -> tuple[Any, ...]:
        item = self.top["rewards"]
        if item.source.layer == "default":
            self.reader.notes.append("no rewards are configured, so torchforge's apply: math and thinking, averaged")
        rewards = tuple(choose.listed(self.reader, "reward", "rewards", item, True))
        if not rewards:
            raise UsageError("`rewards` is empty", where=item.source.where, fix="name one, such as `rewards: [math]`")
        return rewards

    def training(self, entropy_coef: float, preset: Source) -> TrainingConfig:
        items = dict(choose.mapping("training", self.top.get("training")))
        if "entropy_coef" not in items:
            items["entropy_coef"] = Item(entropy_coef, preset)
        interval = items.get("sync_interval")
        if "max_policy_age" not in items and interval is not None and isinstance(interval.value, int) and interval.value > 1:
            derived = Source("default", f"training.sync_interval - 1 ({interval.source.where})")
            items["max_policy_age"] = Item(interval.value - 1, derived)
        return self.reader.section(TrainingConfig, "training", items)

    def split_reward(self) -> tuple[dict[str, Item], dict[str, Item]]:
        """`reward` is both a section and a role: `--reward.procs 2` means the role."""
        items = choose.mapping("reward", self.top.get("reward"))
        own = {name: item for name, item in items.items() if name not in SERVICE_KEYS}
        return own, {name: item for name, item in items.items() if name in SERVICE_KEYS}

    def services(self, moved: Mapping[str, Mapping[str, Item]]) -> dict[str, ServiceConfig]:
        given = choose.mapping("services", self.top.get("services"))
        for name, item in given.items():
            if name not in ROLES:
                raise unknown_key(f"services.{name}", name, item, list(ROLES), "config key")
        services = {}
        for role in ROLES:
            section = given.get(role)
            empty = section is None or section.value is None
            items = choose.mapping(f"services.{role}", None if empty else section)
            merged = choose.move_to_service(role, items, moved.get(role, {}))
            services[role] = self.reader.section(ServiceConfig, f"services.{role}", merged)
        return services


def role_config(part: Part) -> RoleConfig:
    return RoleConfig(use=part.ref, extra=part.use.config)


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
                where=error.where, fix=f"remove it, or install and select the plugin that provides `{name}`",
            )  # fmt: skip
        raise error
