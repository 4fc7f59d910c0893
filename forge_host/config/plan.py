"""What a run is made of, resolved: every chosen component with its plugin and settings, and what they need.

    plan = resolve("quickstart", host=host).plan
    print(plan.loss.ref, plan.loss.use.config, plan.needs)

Plain data that pickles, so that every role of a run gets the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from forge_host.config.schema import RunConfig
from forge_host.types import KL, Aggregation, Correction, SamplingParams, Use


@attrs.frozen(kw_only=True)
class Part:
    """A chosen component.

    Args:
        kind: "loss", "reward", ...
        name: its name without the plugin's, for metrics; "my-reward" for `file.py:MyReward`.
        plugin: name of the plugin that provides it; "" without one.
        use: what `PluginHost.build` takes; its `config` holds every field's value, defaults included.
        origin: distribution and version, or file, that it comes from.
        needs: what its spec asks of the plan.
        takes: what its signature names: of a loss what has no default, of an advantage everything.
        token_level: whether an advantage says (`token_level`) that a row's tokens get different values.
    """

    kind: str
    name: str
    plugin: str
    use: Use
    origin: str = ""
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    token_level: bool = False

    @property
    def ref(self) -> str:
        return f"{self.plugin}/{self.name}" if self.plugin else self.use.ref

    @property
    def label(self) -> str:
        """Its name in metrics: without the file or module of a reference."""
        return self.name.rpartition(":")[2]

    def describe(self) -> str:
        return f"{self.kind} `{self.ref}`"


@attrs.frozen(kw_only=True)
class Plan:
    """The components and settings of one run, and the `config` they were chosen from.

    `evaluation` is the dataset of held-out prompts; the training dataset itself when `evaluation.dataset` is not set.
    `needs` is the union of the parts' needs plus what the settings ask for: "ref_logprobs", "old_logprobs",
    "unfiltered-sampling", "groups", "sequence-advantages".
    `environment`: whose conversations are the responses; it may grade them itself, then `rewards` may be none.
    `offline`: it trains on the dataset's own responses, so it has neither rewards nor a generator (named "none").
    """

    config: RunConfig
    algorithm: Part
    model: Part
    dataset: Part
    evaluation: Part
    environment: Part | None = None
    rewards: tuple[tuple[Part, float], ...]
    loss: Part
    advantage: Part
    sampler: Part
    shaping: tuple[Part, ...]
    generator: Part
    trainer: Part
    transport: Part
    launcher: Part
    trackers: tuple[Part, ...]
    sampling: SamplingParams
    aggregation: Aggregation
    kl: KL
    correction: Correction
    entropy_coef: float
    mask_truncated: bool
    offline: bool = False
    needs: frozenset[str] = frozenset()

    @property
    def needs_ref_logprobs(self) -> bool:
        return "ref_logprobs" in self.needs

    @property
    def trainer_is_reference(self) -> bool:
        """With adapters (LoRA) the trainer's frozen weights are the reference model."""
        return bool(self.trainer.use.config.get("lora_rank"))

    @property
    def needs_ref_model(self) -> bool:
        """Whether the reference model gets processes of its own."""
        return self.needs_ref_logprobs and not self.trainer_is_reference

    @property
    def needs_old_logprobs(self) -> bool:
        return "old_logprobs" in self.needs

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that get processes; the reference model's only when something needs it."""
        roles = ("trainer",) if self.offline else ("generator", "trainer", "reward")
        return (*roles, *(("ref_model",) if self.needs_ref_model else ()))

    def parts(self) -> Iterator[Part]:
        """Every component of the run, the model first."""
        yield from (self.model, self.dataset, *((self.environment,) if self.environment else ()))
        yield from (*(part for part, _weight in self.rewards), self.loss, self.advantage)
        yield from (self.sampler, *self.shaping, self.generator, self.trainer, self.transport, self.launcher)
        yield from self.trackers


def with_needs(plan: Plan, *more: str) -> Plan:
    """The plan with its needs filled in from its parts and settings, and `more`."""
    needs = set(more).union(*(part.needs for part in plan.parts()))
    if plan.kl.beta > 0:
        needs.add("ref_logprobs")
    if plan.correction.mode != "none":
        # Under top-p or top-k the sampler's log-probabilities are not of the distribution it drew from.
        needs.add("unfiltered-sampling")
    return attrs.evolve(plan, needs=frozenset(needs))
