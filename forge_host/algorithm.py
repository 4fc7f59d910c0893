"""The keys that every algorithm has, so that an algorithm's own module states only what is its own. Torch-free.

    @preset(n_samples=16, clip_high=0.28)
    class Mine(ClippedAlgorithm):
        slope: float = field(default=1.0, help="steepness of my gate")

        def build(self) -> AlgorithmParts:
            return self.parts(self.clipped("mine/mine", "slope"), Use("builtin/group"))

Finer settings (a bound of the KL, a fixed length, ...) are keys of the sections `kl`, `aggregation`, `correction` and
`sampling`, which overlay what an algorithm builds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import attrs
from attrs.validators import and_, ge, gt, in_, le

from forge_host.rl import fields
from forge_host.types import (
    AGGREGATIONS,
    KL,
    KL_ESTIMATORS,
    Aggregation,
    AlgorithmParts,
    Correction,
    SamplingParams,
    Use,
    field,
)  # fmt: skip

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, attrs.field))
def preset(**defaults: Any) -> Callable[[type[T]], type[T]]:
    """Makes a frozen, keyword-only attrs class whose inherited fields have other defaults.

    Help, unit and validator of a field stay where the field was first written.
    """

    def transform(cls: type, fields: list[Any]) -> list[Any]:
        unknown = sorted(set(defaults) - {a.name for a in fields})
        if unknown:
            raise TypeError(f"{cls.__name__} has no field {unknown[0]!r} to give a default")
        # Not `inherited`: attrs takes a grandchild's fields from the class that defined them first, with its default.
        return [a.evolve(default=defaults[a.name], inherited=False) if a.name in defaults else a for a in fields]

    def decorate(cls: type[T]) -> type[T]:
        return attrs.frozen(kw_only=True, field_transformer=transform)(cls)

    return decorate


@attrs.frozen(kw_only=True)
class BaseAlgorithm:
    """Sampling, KL, correction and aggregation: one config section's common keys."""

    n_samples: int = field(default=8, help="responses per prompt", validator=ge(1))
    max_tokens: int = field(default=256, help="response budget", unit="tokens", validator=ge(1))
    temperature: float = field(default=1.0, help="softmax temperature of sampling; 0 is greedy", validator=ge(0.0))
    top_p: float = field(default=1.0, help="nucleus mass that sampling keeps", validator=and_(gt(0.0), le(1.0)))
    top_k: int = field(default=0, help="candidates that sampling keeps, 0 for all", validator=ge(0))
    stop: tuple[str, ...] = field(default=(), converter=tuple, help="strings that end a response")
    beta: float = field(default=0.0, help="KL coefficient; 0 starts no reference model", validator=ge(0.0))
    kl_estimator: str = field(
        default="k3", help="k1, k2, k3, abs, or with + for k2's gradient", validator=in_(KL_ESTIMATORS)
    )
    kl_placement: str = field(default="loss", help="loss or reward", validator=in_(("loss", "reward")))
    aggregation: str = field(
        default="token-mean",
        help="token-mean, sequence-mean, sequence-sum or fixed-length (divides by max_tokens)",
        validator=in_(AGGREGATIONS),
    )
    correction: str = field(
        default="none",
        help="importance weights for the generator's mismatch: none, truncate (TIS) or mask (IcePop, MIS)",
        validator=in_(("none", "truncate", "mask")),
    )
    correction_level: str = field(default="token", help="token or sequence", validator=in_(("token", "sequence")))
    correction_low: float | None = field(default=None, help="lower bound of the correction's weight")
    correction_high: float | None = field(default=2.0, help="upper bound of the correction's weight")
    old_policy: str = field(
        default="trainer",
        help="ratios are taken to the trainer's policy at the start of the step, or to the generator's",
        validator=in_(("trainer", "generator")),
    )
    entropy_coef: float = field(default=0.0, help="entropy bonus")
    mask_truncated: bool = field(default=False, help="leave responses cut off by the budget out of the loss")

    def parts(
        self, loss: Use, advantage: Use, *, sampler: Use | None = None, shaping: tuple[Use, ...] = ()
    ) -> AlgorithmParts:
        """The parts of an algorithm made of these components and the common keys."""
        return AlgorithmParts(
            loss=loss,
            advantage=advantage,
            sampler=sampler or Use("group"),
            shaping=shaping,
            sampling=SamplingParams(
                n=self.n_samples, max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p,
                top_k=self.top_k, stop=self.stop,
            ),
            aggregation=Aggregation(mode=self.aggregation),
            kl=KL(beta=self.beta, estimator=self.kl_estimator, placement=self.kl_placement),
            correction=Correction(
                mode=self.correction, level=self.correction_level, low=self.correction_low, high=self.correction_high,
                old_policy=self.old_policy,
            ),
            entropy_coef=self.entropy_coef,
            mask_truncated=self.mask_truncated,
        )  # fmt: skip

    def pick(self, *names: str) -> dict[str, Any]:
        """Own keys that go to a component unchanged: `Use("dapo/dapo", self.pick("clip_low", "clip_high"))`."""
        return {name: getattr(self, name) for name in names}


@attrs.frozen(kw_only=True)
class ClippedAlgorithm(BaseAlgorithm):
    """An algorithm whose loss bounds a ratio to [1 - clip_low, 1 + clip_high]."""

    clip_low: float = fields.clip_low(0.2)
    clip_high: float = fields.clip_high(0.2)

    def clipped(self, ref: str, *more: str) -> Use:
        """The loss `ref` with this section's clip bounds, and other keys that go to it unchanged."""
        return Use(ref, self.pick("clip_low", "clip_high", *more))
