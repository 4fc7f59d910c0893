"""The frozen records that hosts and plugins exchange. Light: no torch, no monarch.

Declarations (`ComponentSpec`, `CommandSpec`, `HostInfo`, `Use`, `AlgorithmParts`), data (`Prompt`, `Completion`,
`RewardResult`, `Episode`, `Group`), and what observers see (`Finding`, `RunInfo`, `StepReport`).

    ComponentSpec("brevity", "my_pkg.reward:Brevity", "shorter replies score higher")
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

Kind = Literal[
    "loss", "advantage", "reward", "sampler", "dataset", "environment", "generator",
    "trainer", "transport", "tracker", "launcher", "router", "model", "algorithm",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")


def field(*, help: str, unit: str | None = None, file: bool = False, **kwargs: Any) -> Any:
    """An attrs field of a component: its `help` (one phrase) and `unit` ("s", "tokens", "nats") go into the metadata.

    `file` says that it names a file to read: a relative one is looked up beside the configuration that names it.
    Everything else (`default`, `factory`, `validator`, `converter`, `kw_only`) is attrs' own.
    """
    metadata = {"help": help, "unit": unit, "file": file, **kwargs.pop("metadata", {})}
    return attrs.field(metadata=metadata, **kwargs)


# --- declarations ---------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class HostInfo:
    """What a declaration hook may know about its host."""

    version: str
    api: str
    python: str
    platform: str


def _texts(value: Iterable[str]) -> tuple[str, ...]:
    """`tuple` as an attrs converter, with a type that mypy can follow."""
    return tuple(value)


@attrs.frozen
class ComponentSpec:
    """One component that a plugin offers; pure data, so declaring it imports nothing heavy.

    Args:
        name: lower-case words joined by "-", unique within kind and plugin.
        target: "package.module:Attribute" of a class or plain callable; an attrs class's fields are its configuration.
        summary: one line for tables.
        config: "package.module:AttrsClass", torch-free, when the target's module is heavy; then `target(config)` builds
            the component, otherwise `target(**fields)` does.
        requires: importable module names the target needs, reported by `doctor` without importing them.
        needs: what the plan must provide: "ref_logprobs", "old_logprobs", "unfiltered-sampling", "groups",
            "sequence-advantages".
        since: host API version from which it works.
    """

    name: str = attrs.field()
    target: str = attrs.field()
    summary: str
    config: str | None = None
    requires: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    needs: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    since: str = "1.0"

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        if not NAME.match(value):
            raise ValueError(f"component name {value!r} is not lower-case words joined by '-'")

    @target.validator
    def _check_target(self, _: Any, value: str) -> None:
        module, _sep, attribute = value.partition(":")
        if not (module and attribute):
            raise ValueError(f"target {value!r} of component {self.name!r} is not 'package.module:Attribute'")


@attrs.frozen
class CommandSpec:
    """A command that a plugin adds to the command line; `target` names a `click.Command`, imported when called."""

    name: str
    target: str
    summary: str


@attrs.frozen
class Use:
    """A chosen component: a reference ("dapo", "dapo/dapo", "mod:attr", "file.py:attr") and values for its fields."""

    ref: str
    config: Mapping[str, Any] = attrs.field(factory=dict)


# --- data -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Prompt:
    """One task. `id` is stable across runs; exactly one of `text` (used as is) and `messages` (chat) is set."""

    id: str
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    target: str | None = None
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.id!r} needs exactly one of text and messages")


@attrs.frozen(kw_only=True)
class Completion:
    """What a generator returned for one sample.

    Args:
        text: decoded response.
        token_ids: response tokens, the end-of-sequence token included when it was sampled. [T]
        logprobs: nats, of the sampled tokens under the distribution sampled from (temperature applied). [T]
        prompt_ids: prompt tokens exactly as fed. [P]
        policy_versions: version of the weights that sampled each token. [T]
        finish_reason: "stop", "length" or "abort".
        mask: False where an environment wrote the token, which is not trained on; empty when all were sampled. [T]
    """

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    prompt_ids: Sequence[int] = ()
    policy_versions: Sequence[int] = ()
    finish_reason: str = "stop"
    mask: Sequence[bool] = ()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        optional = (len(self.policy_versions), len(self.mask))
        if len(self.logprobs) != num_tokens or not {0, num_tokens}.issuperset(optional):
            raise ValueError(
                f"completion has {num_tokens} tokens, {len(self.logprobs)} log-probabilities, "
                f"{len(self.policy_versions)} policy versions and a mask of {len(self.mask)}"
            )

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy wrote."""
        return sum(self.mask) if self.mask else len(self.token_ids)


@attrs.frozen
class RewardResult:
    """A reward's verdict: `value`, named `parts` for metrics, and a `note` for the rollout record."""

    value: float
    parts: Mapping[str, float] = attrs.field(factory=dict)
    note: str = ""


@attrs.frozen(kw_only=True)
class Episode:
    """One scored sample. `reward` is None when it could not be graded; such an episode is never trained on."""

    id: str
    prompt: Prompt
    completion: Completion
    reward: float | None = None
    parts: Mapping[str, float] = attrs.field(factory=dict)
    note: str = ""
    error: str | None = None


@attrs.frozen(kw_only=True)
class Group:
    """The episodes of one prompt, all of them scored."""

    id: str
    prompt: Prompt
    episodes: tuple[Episode, ...]

    @property
    def rewards(self) -> list[float]:
        return [e.reward for e in self.episodes if e.reward is not None]


@attrs.frozen
class Verdict:
    """A sampler's decision about a group: train on it or drop it, and why."""

    keep: bool
    reason: str = ""


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How responses are drawn. `top_p` 1 and `top_k` 0 mean unfiltered."""

    n: int = field(default=8, help="responses per prompt", validator=attrs.validators.ge(1))
    max_tokens: int = field(default=256, help="response budget", unit="tokens", validator=attrs.validators.ge(1))
    temperature: float = field(default=1.0, help="softmax temperature; 0 is greedy", validator=attrs.validators.ge(0.0))
    top_p: float = field(
        default=1.0,
        help="nucleus mass kept",
        validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(1)),
    )
    top_k: int = field(default=0, help="candidates kept, 0 for all", validator=attrs.validators.ge(0))
    stop: tuple[str, ...] = field(default=(), converter=tuple, help="strings that end a response")
    seed: int | None = field(default=None, help="seed of the draw; None is fresh")
    ignore_eos: bool = field(default=False, help="go on after the end-of-sequence token, up to max_tokens (benchmarks)")


# --- algorithms -----------------------------------------------------------------------------------------------------

AGGREGATIONS = ("token-mean", "sequence-mean", "sequence-sum", "fixed-length")
KL_ESTIMATORS = ("k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+")


@attrs.frozen(kw_only=True)
class Aggregation:
    """How per-token losses [B, T] become one number over the whole step (formulas: `forge_host.rl.aggregation`)."""

    mode: str = field(
        default="token-mean",
        help="token-mean, sequence-mean, sequence-sum or fixed-length",
        validator=attrs.validators.in_(AGGREGATIONS),
    )
    length: int | None = field(default=None, help="constant divisor of fixed-length; None is max_tokens", unit="tokens")
    length_eps: float = field(default=0.0, help="added to each row's length in sequence-mean (verl adds 1e-8)")
    empty_rows: str = field(
        default="count", help="rows without tokens: count or skip", validator=attrs.validators.in_(("count", "skip"))
    )


@attrs.frozen(kw_only=True)
class KL:
    """Penalty towards the reference model; off when `beta` is 0."""

    beta: float = field(default=0.0, help="coefficient", validator=attrs.validators.ge(0.0))
    estimator: str = field(
        default="k3",
        help="k1, k2, k3, abs, or with + for the straight-through gradient",
        validator=attrs.validators.in_(KL_ESTIMATORS),
    )
    placement: str = field(default="loss", help="loss or reward", validator=attrs.validators.in_(("loss", "reward")))
    clamp: float | None = field(default=None, help="bound on the log-ratio before the estimate (verl: 20)", unit="nats")
    max_value: float | None = field(default=None, help="bound on the estimate (verl: 10)", unit="nats")
    bias_correction: bool = field(default=False, help="multiply by the unclipped ratio, as TRL >= 1.10 does")


@attrs.frozen(kw_only=True)
class Correction:
    """Importance correction between the generator's and the trainer's log-probabilities (TIS, MIS, IcePop)."""

    mode: str = field(
        default="none", help="none, truncate or mask", validator=attrs.validators.in_(("none", "truncate", "mask"))
    )
    level: str = field(default="token", help="token or sequence", validator=attrs.validators.in_(("token", "sequence")))
    low: float | None = field(default=None, help="lower bound of the weight")
    high: float | None = field(default=2.0, help="upper bound of the weight")
    log_ratio_clamp: float | None = field(
        default=None, help="bound on the log-ratio before exp (verl: 20)", unit="nats"
    )
    old_policy: str = field(
        default="trainer",
        help="whose log-probabilities are old_logprobs: trainer, as at the start of the step, or generator (no extra "
        "pass; the loss's own ratio is then the correction)",
        validator=attrs.validators.in_(("trainer", "generator")),
    )


@attrs.frozen(kw_only=True)
class AlgorithmParts:
    """What an algorithm is made of. References, not objects, so an algorithm's module needs no torch.

    `offline` trains on the dataset's own responses (SFT): no generator and no rewards are started.
    """

    loss: Use
    advantage: Use
    sampler: Use = Use("group")
    shaping: tuple[Use, ...] = ()
    sampling: SamplingParams = SamplingParams()
    aggregation: Aggregation = Aggregation()
    kl: KL = KL()
    correction: Correction = Correction()
    entropy_coef: float = 0.0
    mask_truncated: bool = False
    offline: bool = False


# --- what observers see ---------------------------------------------------------------------------------------------


@attrs.frozen
class Finding:
    """Something a plugin has to say about a plan: level "error" stops the run before any process starts."""

    level: Literal["error", "warning", "note"]
    message: str
    fix: str = ""


@attrs.frozen(kw_only=True)
class RunInfo:
    """The run an observer hook is called for; `config` is the resolved configuration as plain data."""

    id: str
    directory: str
    config: Mapping[str, Any]

    def plain_config(self) -> dict[str, Any]:
        """`config` through JSON, for services that hold nothing else: what JSON does not know becomes its text."""
        found: dict[str, Any] = json.loads(json.dumps(self.config, default=str))
        return found


@attrs.frozen(kw_only=True)
class StepReport:
    """One finished optimizer step; `metrics` has the names and units of `metrics.jsonl`."""

    step: int
    policy_version: int
    time: float
    metrics: Mapping[str, float]

    def finite(self) -> dict[str, float]:
        """The metrics that are numbers: few dashboards take NaN or infinity."""
        return {name: value for name, value in self.metrics.items() if math.isfinite(value)}


#: What of a run's summary tells how it ended; the rest (samples, paths) stays on the machine.
OUTCOME = (
    "status", "error", "steps", "policy_version", "reward_first", "reward_last", "loss_first", "loss_last",
    "eval_loss_first", "eval_loss_last", "startup_s", "train_s",
)  # fmt: skip


def outcome(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a tracker may send elsewhere of the summary that `Tracker.finish` gets, plain values."""
    return {key: summary[key] for key in OUTCOME if summary.get(key) is not None}
