"""What the trainer minimises: a loss component plus everything around it that is the host's.

    objective = Objective(loss, kl=KL(beta=0.04), max_tokens=256)
    totals = StepTotals.of(t["padding_mask"] for t in targets_of_the_step)
    for tensors in micro_batches:
        loss, metrics = objective(tensors, totals)
        loss.backward()                                   # gradients add up over micro-batches and ranks
    report = merge_metrics(all_metrics)

Order, as in TRL: the component's policy loss, times the importance correction's weight, plus `kl.beta` times the KL
estimate (not weighted), minus `entropy_coef` times the entropy; then one aggregation over the whole step.

Every tensor is `where(mask, x, 0)` before anything is computed. A token whose generator, old or reference
log-probability is not finite is dropped: it adds nothing to the loss, is counted in `policy/dropped_tokens`, and
stays in the denominators, which are those of the step as it was batched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from forge_host.api import LOSS_ARGUMENTS
from forge_host.errors import UsageError
from forge_host.plugins.calling import CallByName
from forge_host.rl.aggregation import StepTotals, aggregate, fixed_length
from forge_host.rl.correction import correction_weights
from forge_host.rl.kl import kl_estimate
from forge_host.rl.metrics import MetricSum
from forge_host.rl.observe import observe
from forge_host.rl.ratio import safe_exp
from forge_host.rl.types import LossOutput
from forge_host.types import KL, Aggregation, Correction

#: Tensors with one value a token.
TOKEN_TENSORS = ("generator_logprobs", "old_logprobs", "ref_logprobs", "advantages", "entropy", "response")
#: A token without one of these cannot be trained on.
MUST_BE_FINITE = ("generator_logprobs", "old_logprobs", "ref_logprobs")


@attrs.define(eq=False, init=False)
class Objective:
    """Loss component, penalties, correction and aggregation as one callable.

    Args:
        loss: a loss component (see `forge_host.api.Loss`), plain or wrapped in `CallByName`.
        max_tokens: response budget, the divisor of `fixed-length` when `aggregation.length` is None.
        name: of the loss, for messages: "loss `dapo/dapo`".

    Attributes:
        needs: names of the tensors that must be given besides logprobs, advantages and padding_mask: what the loss
            names without a default, and what the settings ask for ("entropy" for `entropy_coef`, ...).
    """

    loss: CallByName
    aggregation: Aggregation
    kl: KL
    correction: Correction
    entropy_coef: float
    max_tokens: int | None
    needs: frozenset[str]

    def __init__(
        self,
        loss: Callable[..., Any],
        aggregation: Aggregation | None = None,
        kl: KL | None = None,
        correction: Correction | None = None,
        entropy_coef: float = 0.0,
        max_tokens: int | None = None,
        name: str | None = None,
    ) -> None:
        what = name or f"loss `{getattr(loss, '__name__', type(loss).__name__)}`"
        self.loss = loss if isinstance(loss, CallByName) else CallByName(loss, LOSS_ARGUMENTS, what)
        self.aggregation, self.kl = aggregation or Aggregation(), kl or KL()
        self.correction, self.entropy_coef, self.max_tokens = correction or Correction(), entropy_coef, max_tokens
        if self.aggregation.mode == "fixed-length":
            fixed_length(self.aggregation, max_tokens)
        self.needs = self._needs()

    def _needs(self) -> frozenset[str]:
        needs = set(self.loss.required) - {"logprobs", "advantages", "padding_mask"}
        if self._kl_in_loss:
            needs.add("ref_logprobs")
        if self.entropy_coef != 0:
            needs.add("entropy")
        if self.correction.mode != "none" or self.correction.old_policy == "generator":
            needs.add("generator_logprobs")
        if self.correction.mode != "none":
            needs.add("old_logprobs")
        if self.correction.old_policy == "generator":
            needs.discard("old_logprobs")  # taken from the generator's
        return frozenset(needs)

    @property
    def _kl_in_loss(self) -> bool:
        return self.kl.beta > 0 and self.kl.placement == "loss"

    def totals(self, targets: Iterable[Mapping[str, Any]]) -> StepTotals:
        """The step's denominators, from the targets of all its micro-batches and ranks."""
        return StepTotals.of(target["padding_mask"] for target in targets)

    def __call__(self, tensors: Mapping[str, Tensor | None], totals: StepTotals) -> tuple[Tensor, dict[str, MetricSum]]:
        """This micro-batch's contribution to the step's loss, and its share of the metrics.

        Args:
            tensors: at least `logprobs` [B, T] (with gradient), `advantages` [B, T], `padding_mask` [B, T] bool, and
                `needs`; `old_logprobs` is `logprobs.detach()` when the step makes a single update.
            totals: of the whole step.

        Returns:
            loss: 0-dim; the sum over micro-batches and ranks is the step's loss, and so for its gradient.
            metrics: merge with `merge_metrics`.

        Raises:
            UsageError: a tensor is missing, has another shape, or the loss returned something unusable.
        """
        given, valid, counts, dropped = self._masked(tensors)
        result = self.loss(**given, padding_mask=valid)
        out = result if isinstance(result, LossOutput) else LossOutput(result)
        policy = self._checked(out.loss, valid)
        weights = outside = None
        if self.correction.mode != "none":
            weights, outside = correction_weights(
                given["old_logprobs"], given["generator_logprobs"], valid, self.correction
            )
        if policy.dim() == 0:
            if weights is not None:
                raise self._refused("returns a scalar, which cannot be weighted token by token",
                                    "return per-token losses [B, T], or set correction.mode to none")  # fmt: skip
            share = valid.sum() / max(totals.num_tokens, 1)
            loss = torch.where(share > 0, policy, 0.0) * share
        else:
            policy = policy if weights is None else policy * weights
            loss = self._sum(policy, counts, totals, valid)
        policy_loss = loss.detach()
        penalty, kl = self._penalty(given, out)
        if penalty is not None:
            loss = loss + self._sum(penalty, counts, totals, valid)
        metrics = observe(given, valid, dropped, out, policy_loss, kl, weights, outside, self.correction)
        return loss, metrics

    def _sum(self, per_token: Tensor, counts: Tensor, totals: StepTotals, valid: Tensor) -> Tensor:
        return aggregate(per_token, counts, self.aggregation, totals, self.max_tokens, valid)

    def _penalty(self, given: Mapping[str, Tensor], out: LossOutput) -> tuple[Tensor | None, Tensor | None]:
        """What is added to each token's policy loss, and the KL estimate in it."""
        penalty = kl = None
        if self._kl_in_loss:
            kl = kl_estimate(given["logprobs"], given["ref_logprobs"], self.kl)
            weighted = kl
            if self.kl.bias_correction:
                weighted = kl * self._ratio(given, out)
            penalty = self.kl.beta * weighted
        if self.entropy_coef != 0:
            bonus = -self.entropy_coef * given["entropy"]
            penalty = bonus if penalty is None else penalty + bonus
        return penalty, kl

    def _ratio(self, given: Mapping[str, Tensor], out: LossOutput) -> Tensor:
        if out.ratio is not None:
            return out.ratio
        if "old_logprobs" in given:
            return safe_exp(given["logprobs"] - given["old_logprobs"])
        raise self._refused(
            "reports no ratio and there are no old_logprobs, which kl.bias_correction multiplies by",
            "set kl.bias_correction to false",
        )

    def _masked(self, tensors: Mapping[str, Tensor | None]) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """The tensors with 0 wherever a token does not count; which tokens do; which count in denominators; the
        number of dropped tokens."""
        logprobs, counts = tensors.get("logprobs"), tensors.get("padding_mask")
        if logprobs is None or counts is None or tensors.get("advantages") is None:
            missing = next(k for k in ("logprobs", "padding_mask", "advantages") if tensors.get(k) is None)
            raise self._refused(f"has no `{missing}` in its batch", f"give `{missing}` [B, T]")
        if logprobs.dim() != 2 or logprobs.numel() == 0:
            raise self._refused(f"got an empty batch: logprobs have shape {tuple(logprobs.shape)}",
                                "give at least one row with one token, [B, T]")  # fmt: skip
        self._check_shape("padding_mask", counts, logprobs)
        for name in sorted(self.needs):
            if tensors.get(name) is None:
                raise self._refused(f"has no `{name}` in its batch, which {self._who(name)} needs", self._remedy(name))
        dtype = logprobs.dtype if logprobs.dtype == torch.float64 else torch.float32
        counts = counts.bool()
        found = {name: value for name, value in tensors.items() if value is not None and name != "padding_mask"}
        if self.correction.old_policy == "generator":
            found["old_logprobs"] = found["generator_logprobs"]
        valid = counts
        for name in TOKEN_TENSORS:
            if name not in found:
                continue
            self._check_shape(name, found[name], logprobs)
            if found[name].is_floating_point():
                keep = found[name] if name == "entropy" else found[name].detach()
                found[name] = keep.to(dtype)
        checked = [found[name] for name in MUST_BE_FINITE if name in found]
        if checked:
            finite = torch.isfinite(sum(checked[1:], checked[0]))
            valid = counts & finite
        given = dict(found)
        for name in ("logprobs", *TOKEN_TENSORS):
            if name in found and found[name].is_floating_point():
                given[name] = torch.where(valid, found[name].to(dtype), 0.0)
            elif name in found:
                given[name] = torch.where(counts, found[name], 0)
        return given, valid, counts, counts.sum() - valid.sum()

    def _checked(self, loss: Any, valid: Tensor) -> Tensor:
        rows = valid.shape[0]
        if not isinstance(loss, Tensor):
            raise self._refused(f"returned {type(loss).__name__}", "return a tensor [B, T], a LossOutput or a scalar")
        if loss.shape not in ((), valid.shape, (rows, 1)):
            raise self._refused(
                f"returned shape {tuple(loss.shape)}, not {tuple(valid.shape)}", "return one loss a token, or a scalar"
            )
        return loss

    def _check_shape(self, name: str, value: Tensor, like: Tensor) -> None:
        if value.shape != like.shape:
            raise self._refused(
                f"got `{name}` of shape {tuple(value.shape)} beside logprobs {tuple(like.shape)}",
                f"give `{name}` one value a response token, [B, T]",
            )

    def _who(self, name: str) -> str:
        if name in self.loss.names:
            return "its signature"
        if name == "ref_logprobs":
            return f"kl.beta {self.kl.beta:g}"
        return f"entropy_coef {self.entropy_coef:g}" if name == "entropy" else f"correction.mode {self.correction.mode}"

    def _remedy(self, name: str) -> str:
        if name == "ref_logprobs" and name not in self.loss.names:
            return "give `ref_logprobs` [B, T] or set kl.beta (the algorithm's `beta`) to 0"
        return f"give `{name}`"

    def _refused(self, message: str, fix: str) -> UsageError:
        return UsageError(message, where=self.loss.what, fix=fix)
