"""Metrics of one micro-batch, the same for every loss. Names and units are those of `metrics.jsonl`.

policy/loss                    the step's policy loss, without penalties (contributions add up)
policy/kl                      nats a token, KL to the reference with the configured estimator, when it is there
policy/entropy                 nats a token, when it was computed
policy/ratio_mean, ratio_max   pi / pi_old as the loss uses it
policy/clip_low, clip_high     share of tokens at which a bound took effect
policy/dropped_tokens          tokens left out because a log-probability was not finite
policy/effective_sample_size   (sum w)^2 / (n sum w^2) of the weights ratio x correction, 1 when all are equal
policy/generator_kl            nats a token, k3 estimate of KL(generator || trainer)
correction/clipped, masked     share of tokens whose correction weight was bounded, or set to 0
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from forge_host.rl.kl import kl_estimate
from forge_host.rl.metrics import MetricSum
from forge_host.rl.ratio import safe_exp
from forge_host.rl.types import LossOutput
from forge_host.types import KL, Correction


@torch.no_grad()
def observe(
    given: Mapping[str, Tensor],
    valid: Tensor,
    dropped: Tensor,
    out: LossOutput,
    policy_loss: Tensor,
    kl: Tensor | None,
    weights: Tensor | None,
    outside: Tensor | None,
    correction: Correction,
) -> dict[str, MetricSum]:
    """Args as `Objective` has them: masked tensors, the valid tokens, the loss's output, the correction's weights."""
    number = valid.sum()

    def mean(values: Tensor) -> MetricSum:
        # The tensors are 0 where a token does not count, and so is every KL estimate of zeros.
        return MetricSum.mean(values.sum(), number)

    metrics = {"policy/loss": MetricSum("sum", policy_loss), "policy/dropped_tokens": MetricSum("sum", dropped)}
    logprobs = given["logprobs"]
    old = given.get("old_logprobs", logprobs)
    if kl is None and "ref_logprobs" in given:
        kl = kl_estimate(logprobs, given["ref_logprobs"], KL())
    if kl is not None:
        metrics["policy/kl"] = mean(kl)
    if "entropy" in given:
        metrics["policy/entropy"] = mean(given["entropy"])
    ratio = out.ratio
    if ratio is None and "old_logprobs" in given:
        ratio = safe_exp(logprobs - old)
    if ratio is not None:
        ratio = torch.where(valid, ratio, 0.0)
        metrics["policy/ratio_mean"] = MetricSum.mean(ratio.sum(), number)
        metrics["policy/ratio_max"] = MetricSum("max", ratio.max(), number)
    for name, clipped in (("policy/clip_low", out.clipped_low), ("policy/clip_high", out.clipped_high)):
        if clipped is not None:
            metrics[name] = MetricSum.mean((valid & clipped).sum(), number)
    effective = ratio if weights is None else weights * valid if ratio is None else ratio * weights
    if effective is not None:
        flat = effective.flatten()
        metrics["policy/effective_sample_size"] = MetricSum("ess", flat.sum(), number, flat.dot(flat))
    if "generator_logprobs" in given:
        metrics["policy/generator_kl"] = mean(kl_estimate(given["generator_logprobs"], old, KL()))
    if outside is not None:
        name = "correction/masked" if correction.mode == "mask" else "correction/clipped"
        metrics[name] = MetricSum.mean(outside.sum(), number)
    return metrics
