"""The steps of one resolve: from the merged tree to `RunConfig` and `Plan`, in the order they depend on each other.

    plan = Assembler(Reader(host), tree.mapping, files).run()

Which component a section chooses is decided in `forge_host.config.choose`; here they are put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from forge_host.config import choose
from forge_host.config.canonical import ROLES, SERVICE_KEYS, is_section
from forge_host.config.merge import DEFAULT_REFS, GENERAL, overlay
from forge_host.config.model import model_part
from forge_host.config.paths import find_path
from forge_host.config.plan import Part, Plan, with_needs
from forge_host.config.schema import (
    EvaluationConfig,
    RewardConfig,
    RoleConfig,
    RunConfig,
    ServiceConfig,
    TrainingConfig,
)  # fmt: skip
from forge_host.config.sections import Reader, unknown_key
from forge_host.config.source import DEFAULT, Item, Source, tree
from forge_host.errors import UsageError
from forge_host.plugins.fields import field_types
from forge_host.plugins.suggest import did_you_mean
from forge_host.types import Use

#: Keys of `RunConfig` with a step of their own; every other one is a plain section or value.
ASSEMBLED = frozenset(
    ("algorithm", "algorithm_config", "loss", "advantage", "sampler", "aggregation", "kl", "correction", "sampling",
     "dataset", "rewards", "reward", "training", "generator", "trainer", "transport", "launcher", "trackers",
     "services", "evaluation", "environment")
)  # fmt: skip


class Assembler:
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
        algorithm, parts = choose.algorithm(reader, top.get("algorithm"), DEFAULT_REFS["algorithm"], top)
        preset = Source("preset", f"algorithm preset {algorithm.name}", rank=-1)
        chosen: dict[str, Any] = {}
        replaced: dict[str, Any] = {}
        for kind, use in (("loss", parts.loss), ("advantage", parts.advantage), ("sampler", parts.sampler)):
            part, given = choose.replaceable(reader, kind, use, top.get(kind), preset)  # type: ignore[arg-type]
            chosen[kind] = part
            if given:
                replaced[kind] = part.use
        for key in ("aggregation", "kl", "correction", "sampling"):
            chosen[key], replaced[key] = choose.settings(reader, key, getattr(parts, key), top.get(key), preset)
        shaping = tuple(
            reader.component(
                reader.find("reward", Item(use.ref, preset), "shaping"),
                f"shaping.{index}",
                tree(use.config, preset).value,
            )
            for index, use in enumerate(parts.shaping)
        )
        dataset, dataset_config = choose.dataset(
            reader, choose.mapping("dataset", top.get("dataset")), DEFAULT_REFS["dataset"]
        )
        evaluation, evaluation_config = self.evaluation(dataset)
        roles, moved = self.roles(parts.offline)
        environment = None if parts.offline else self.environment()
        gates: dict[str, float] = {}
        rewards = () if parts.offline else self.rewards(gates, environment)
        if parts.offline:
            self.note_unused(algorithm)
        training = self.training(parts.entropy_coef, preset)
        trackers = tuple(part for part, _ in choose.listed(reader, "tracker", "trackers", top["trackers"], False))
        reward_items, reward_service = self.split_reward()
        config = RunConfig(
            **scalars, **replaced,
            algorithm=algorithm.ref, algorithm_config=algorithm.use.config, dataset=dataset_config,
            environment=environment.use if environment else None,
            rewards=tuple((part.use, weight) for part, weight in rewards),
            reward=self.gated(
                reader.section(RewardConfig, "reward", reward_items), gates,
                [*(part for part, _weight in rewards), *((environment,) if environment else ())],
            ),
            training=training,
            generator=RoleConfig(use=roles["generator"].ref, extra=roles["generator"].use.config),
            trainer=RoleConfig(use=roles["trainer"].ref, extra=roles["trainer"].use.config),
            transport=RoleConfig(use=roles["transport"].ref, extra=roles["transport"].use.config),
            launcher=RoleConfig(use=roles["launcher"].ref, extra=roles["launcher"].use.config),
            trackers=tuple(part.use for part in trackers),
            services=self.services({**moved, "reward": reward_service}),
            evaluation=evaluation_config,
            **self.sections(),
        )  # fmt: skip
        plan = Plan(
            config=config, algorithm=algorithm, model=model, dataset=dataset, evaluation=evaluation,
            environment=environment, rewards=rewards, shaping=shaping, **chosen, generator=roles["generator"],
            trainer=roles["trainer"], transport=roles["transport"], launcher=roles["launcher"], trackers=trackers,
            entropy_coef=training.entropy_coef,
            mask_truncated=parts.mask_truncated,
            offline=parts.offline,
        )  # fmt: skip
        return with_needs(plan)

    def sections(self) -> dict[str, Any]:
        """The sections that nothing else depends on."""
        hints = field_types(RunConfig)
        return {
            key: self.reader.section(cls, key, choose.mapping(key, self.top.get(key)))
            for key, cls in hints.items()
            if key not in ASSEMBLED and is_section(key)
        }

    def scalars(self) -> dict[str, Any]:
        """The keys that are no sections."""
        hints = field_types(RunConfig)
        values = {}
        for key, hint in hints.items():
            if key in ASSEMBLED or is_section(key):
                continue
            item = self.top.get(key)
            if item is not None:
                values[key] = self.reader.value(key, item, hint)
            else:
                self.reader.defaults("", {key: None})
        if "plugin_files" in values:
            source = self.top["plugin_files"].source
            values["plugin_files"] = tuple(str(find_path(file, source) or file) for file in values["plugin_files"])
        if not values.get("name"):
            stem = Path(self.files[-1].source.where).stem if self.files else "run"
            values["name"] = stem
            self.reader.provenance["name"] = Source("default", "name of the configuration")
        return values

    def evaluation(self, dataset: Part) -> tuple[Part, EvaluationConfig]:
        """The dataset of the evaluation: the run's, with the keys of `evaluation.dataset` in place of its own."""
        reader, items = self.reader, choose.mapping("evaluation", self.top.get("evaluation"))
        config = reader.section(EvaluationConfig, "evaluation", items)
        given = choose.mapping("evaluation.dataset", items.get("dataset"))
        if not given:
            return dataset, config
        for name in given:
            if name in GENERAL["dataset"]:
                raise UsageError(
                    f"`evaluation.dataset.{name}` is not set apart, as evaluation prompts are made as those of the run",
                    where=given[name].source.where, fix=f"set dataset.{name}",
                )  # fmt: skip
        training = self.top.get("dataset", Item({}, DEFAULT))
        merged = overlay(training, items["dataset"], "dataset").mapping or {}
        part, chosen = choose.dataset(reader, merged, DEFAULT_REFS["dataset"], "evaluation.dataset")
        kept = {**chosen.extra, "path": chosen.path}
        return part, attrs.evolve(config, dataset={name: kept[name] for name in given})

    def roles(self, offline: bool) -> tuple[dict[str, Part], dict[str, dict[str, Item]]]:
        parts: dict[str, Part] = {}
        moved: dict[str, dict[str, Item]] = {}
        for kind in ("generator", "trainer", "transport", "launcher"):
            if offline and kind == "generator":
                parts[kind] = Part(kind=kind, name="none", plugin="", use=Use("none"), origin="forge-host")
                continue
            items = choose.mapping(kind, self.top.get(kind))
            parts[kind], service = choose.role(self.reader, kind, items, DEFAULT_REFS[kind])
            if kind in ROLES:
                moved[kind] = service
            elif service:
                name, item = next(iter(service.items()))
                raise UsageError(
                    f"`{kind}.{name}` is unknown, as {kind} has no processes of its own", where=item.source.where
                )
        return parts, moved

    def note_unused(self, algorithm: Part) -> None:
        """A configuration shared with a run that generates may name these; they have no part in this one."""
        given = [key for key in ("rewards", "generator") if key in self.top and self.chosen(key)]
        if given:
            self.reader.notes.append(
                f"{algorithm.describe()} trains on the dataset's own responses, so the configuration's "
                f"{' and '.join(given)} ({self.top[given[0]].source.where}) is not used"
            )

    def chosen(self, key: str) -> bool:
        item = self.top[key]
        return item.source.layer != "default" and item.plain not in ([], {"use": "none"})

    def environment(self) -> Part | None:
        """The environment, if one is chosen; it has no default."""
        item = self.top.get("environment")
        if item is not None and item.value is None:
            item = None
        items = dict(choose.mapping("environment", item))
        use = items.pop("use", None)
        if use is None:
            if item is not None and items:
                raise UsageError("`environment` has no `use`", where=item.source.where, fix="add `use: NAME`")
            self.reader.defaults("", {"environment": None})
            return None
        part = self.reader.component(self.reader.find("environment", use, "environment"), "environment", items)
        self.reader.record("environment.use", use)
        return part

    def rewards(self, gates: dict[str, float], environment: Part | None) -> tuple[tuple[Part, float], ...]:
        item = self.top["rewards"]
        if environment is not None and (item.source.layer == "default" or item.plain == []):
            self.reader.record("rewards", Item([], item.source))
            return ()  # it grades its episodes itself
        if item.source.layer == "default":
            self.reader.notes.append("no rewards are configured, so torchforge's apply: math and thinking, averaged")
        rewards = tuple(choose.listed(self.reader, "reward", "rewards", item, True, gates))
        if not rewards:
            raise UsageError("`rewards` is empty", where=item.source.where, fix="name one, such as `rewards: [math]`")
        return rewards

    def gated(
        self, section: RewardConfig, gates: Mapping[str, float], rewards: Sequence[Part]
    ) -> RewardConfig:
        """The section with the gates that entries of `rewards` asked for; every gate is one of the rewards."""
        found = {**section.gates, **gates}
        labels = [part.label for part in rewards]
        for name in found if rewards else ():
            if name not in labels:
                raise UsageError(
                    f"reward.gates names `{name}`, which is not among the rewards",
                    fix=did_you_mean(name, labels) or f"the rewards are {', '.join(labels)}",
                )
        return attrs.evolve(section, gates=found)

    def training(self, entropy_coef: float, preset: Source) -> TrainingConfig:
        items = dict(choose.mapping("training", self.top.get("training")))
        if "entropy_coef" not in items:
            items["entropy_coef"] = Item(entropy_coef, preset)
        interval = items.get("sync_interval")
        if interval and "max_policy_age" not in items and isinstance(interval.value, int) and interval.value > 1:
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
            router = merged.get("router")
            services[role] = self.reader.section(ServiceConfig, f"services.{role}", merged)
            if router is not None and router.value is not None:
                use = self.router(f"services.{role}.router", router)
                services[role] = attrs.evolve(services[role], router=use)
        return services

    def router(self, key: str, item: Item) -> Use:
        """The router component that a service names, its keys checked and its defaults filled in."""
        keys = dict(item.mapping or {})
        use = keys.pop("use", None) if item.mapping is not None else item
        if use is None:
            raise UsageError(f"`{key}` has no `use`", where=item.source.where, fix="add `use: NAME`")
        return self.reader.component(self.reader.find("router", use, key), key, keys).use
