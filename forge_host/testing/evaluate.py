"""Values, gradients and metrics of any loss or advantage, as a trainer would compute them, in float64 if you like.

    from forge_host.testing import evaluate_advantage, evaluate_loss

    loss, gradients, metrics = evaluate_loss("dapo/dapo", tensors, {"clip_high": 0.3}, aggregation="sequence-mean")
    gradients["logprobs"]                                     # [B, T]
    advantages = evaluate_advantage("grpo/grpo", [1.0, 0.0], [0, 0], {"eps": 1e-6})

Public, for anyone who checks us: the same `Objective` and `compute_advantages` that a run uses, nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import attrs
import torch
from torch import Tensor

from forge_host.api import ADVANTAGE_ARGUMENTS, LOSS_ARGUMENTS
from forge_host.plugins import CallByName, PluginHost
from forge_host.plugins.structure import structure
from forge_host.rl import Objective, StepTotals, compute_advantages, merge_metrics, token_kl
from forge_host.types import KL, Aggregation, AlgorithmParts, Correction, Kind, Use

T = TypeVar("T")
#: What a record may be given as: the class, its keys, or (aggregation) its mode.
Settings = Mapping[str, Any]


class Evaluation(NamedTuple):
    """`loss` is the step's; `gradients` has one [B, T] tensor for "logprobs" and, if it was given, "entropy"."""

    loss: float
    gradients: dict[str, Tensor]
    metrics: dict[str, float]


@lru_cache(maxsize=1)
def _host() -> PluginHost:
    return PluginHost.load()


def component(
    kind: Kind, ref: Any, config: Settings | None = None, known: Sequence[str] = LOSS_ARGUMENTS
) -> CallByName:
    """A component to be called by name: from a reference, a class with its settings, or an object as it is."""
    if isinstance(ref, CallByName):
        return ref
    if isinstance(ref, str):
        return CallByName(_host().build(kind, Use(ref, dict(config or {}))), known, f"{kind} `{ref}`")
    if isinstance(ref, type):
        what = f"{kind} `{ref.__name__}`"
        built: Any = structure(ref, config, what) if attrs.has(ref) else ref(**(config or {}))
        return CallByName(built, known, what)
    if config:
        raise TypeError(f"{kind} is already built; settings go with a reference or a class")
    return CallByName(ref, known, f"{kind} `{getattr(ref, '__name__', type(ref).__name__)}`")


def declared(owner: object, name: str = "ref") -> Any:
    """The class attribute as it was written: a plain function stays one instead of becoming a method."""
    value = inspect.getattr_static(type(owner), name)
    return value.__func__ if isinstance(value, staticmethod) else value


def make_objective(
    ref: Any,
    config: Settings | None = None,
    *,
    aggregation: Aggregation | Settings | str | None = None,
    kl: KL | Settings | None = None,
    correction: Correction | Settings | None = None,
    entropy_coef: float = 0.0,
    max_tokens: int | None = None,
) -> Objective:
    """The `Objective` of a loss (a reference, class or callable) and plain settings.

    Raises:
        UsageError: a setting is unknown or wrong; it names the component, the field and what is allowed.
    """
    if isinstance(aggregation, str):
        aggregation = {"mode": aggregation}
    return Objective(
        component("loss", ref, config),
        _record(Aggregation, aggregation, "aggregation"),
        _record(KL, kl, "kl"),
        _record(Correction, correction, "correction"),
        entropy_coef,
        max_tokens,
    )


def algorithm_parts(ref: str, config: Settings | None = None) -> AlgorithmParts:
    """What an algorithm is made of with these keys of its section."""
    parts: AlgorithmParts = _host().build("algorithm", Use(ref, dict(config or {}))).build()
    return parts


def algorithm_objective(ref: str, config: Settings | None = None, **overlay: Any) -> Objective:
    """The `Objective` of an algorithm; `overlay` has the sections a config may lay over it (`loss`, `aggregation`,
    `kl`, `correction`: their keys, `loss` also `use` for another one; `max_tokens`)."""
    parts = algorithm_parts(ref, config)
    loss = dict(overlay.pop("loss", {}))
    chosen = loss.pop("use", parts.loss.ref)
    return make_objective(
        chosen,
        {**(parts.loss.config if chosen == parts.loss.ref else {}), **loss},
        aggregation=_laid(parts.aggregation, overlay.pop("aggregation", {})),
        kl=_laid(parts.kl, overlay.pop("kl", {})),
        correction=_laid(parts.correction, overlay.pop("correction", {})),
        entropy_coef=overlay.pop("entropy_coef", parts.entropy_coef),
        max_tokens=overlay.pop("max_tokens", parts.sampling.max_tokens),
        **overlay,
    )


def evaluate_loss(
    ref: Any,
    tensors: Mapping[str, Any],
    config: Settings | None = None,
    *,
    aggregation: Aggregation | Settings | str | None = None,
    kl: KL | Settings | None = None,
    correction: Correction | Settings | None = None,
    entropy_coef: float = 0.0,
    max_tokens: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Evaluation:
    """Loss, gradients and metrics of one whole step.

    Args:
        ref: "dapo/dapo", "my_pkg.losses:MyLoss", "file.py:MyLoss", a class, a callable, or an `Objective` (then the
            settings are its own).
        tensors: tensors or nested lists by the names of `forge_host.api.LOSS_ARGUMENTS`, [B, T]; `logprobs`,
            `advantages`, `padding_mask` at least.
        dtype: that floating-point tensors are computed in.

    Raises:
        UsageError: a wrong setting, shape, or a missing tensor.
        PluginError: the component cannot be found, or asks for what does not exist.
    """
    objective = ref if isinstance(ref, Objective) else make_objective(
        ref, config, aggregation=aggregation, kl=kl, correction=correction, entropy_coef=entropy_coef,
        max_tokens=max_tokens,
    )  # fmt: skip
    given = {name: _tensor(name, value, dtype) for name, value in tensors.items() if value is not None}
    leaves: dict[str, Tensor] = {n: given[n].requires_grad_() for n in ("logprobs", "entropy") if n in given}
    masks = [given["padding_mask"]] if "padding_mask" in given else []
    loss, shares = objective(given, StepTotals.of(masks))
    if loss.requires_grad:
        loss.backward()
    gradients = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    return Evaluation(float(loss.detach()), gradients, merge_metrics([shares]))


def evaluate_advantage(
    ref: Any,
    rewards: Any,
    group_ids: Any,
    config: Settings | None = None,
    *,
    padding_mask: Any = None,
    kl: KL | Settings | None = None,
    old_logprobs: Any = None,
    ref_logprobs: Any = None,
    row_constant: bool = False,
) -> Tensor:
    """Advantages of one step, float64: [B] without a padding mask, else [B, T] with 0 at padding.

    Args:
        rewards, group_ids: [B]; a single group when `group_ids` is None.
        padding_mask: [B, T]; without it every response has one token.
        kl: with `placement: reward`, subtracts the KL of `old_logprobs` to `ref_logprobs` [B, T].
        row_constant: refuse advantages that differ within a row, as a sequence-level loss needs.

    Raises:
        UsageError, RunError: see `forge_host.rl.advantages.compute_advantages`.
    """
    r = torch.as_tensor(rewards, dtype=None if isinstance(rewards, Tensor) else torch.float64)
    groups = torch.zeros(r.shape, dtype=torch.int64) if group_ids is None else torch.as_tensor(group_ids)
    mask = torch.ones(len(r), 1, dtype=torch.bool) if padding_mask is None else torch.as_tensor(padding_mask).bool()
    settings = _record(KL, kl, "kl")
    penalty = None
    if settings is not None and settings.placement == "reward" and settings.beta > 0:
        old, reference = (torch.as_tensor(x, dtype=torch.float64) for x in (old_logprobs, ref_logprobs))
        penalty = token_kl(old, reference, mask, settings)
    call = component("advantage", ref, config, ADVANTAGE_ARGUMENTS)
    values = compute_advantages(call, r, groups, mask, penalty, row_constant=row_constant)
    return values[:, 0] if padding_mask is None else values


def _tensor(name: str, value: Any, dtype: torch.dtype) -> Tensor:
    if name == "padding_mask":
        return torch.as_tensor(value).bool()
    if name in ("response", "lengths", "group_ids"):
        return torch.as_tensor(value)
    # Straight to `dtype`: a list of Python floats would otherwise be rounded to float32 first.
    return torch.as_tensor(value, dtype=dtype).detach().clone()


def _record(cls: type[T], value: T | Settings | None, where: str) -> T | None:
    return structure(cls, value, where) if isinstance(value, Mapping) else value


def _laid(record: Any, keys: Settings) -> Any:
    return structure(type(record), {**attrs.asdict(record), **keys}, type(record).__name__.lower()) if keys else record
