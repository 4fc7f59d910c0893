"""Combinations of loss, advantage, KL and correction that make no sense, found before any process starts. Torch-free.

    findings = [finding for check in CHECKS for finding in check(plan)]

Each check takes a `forge_host.config.plan.Plan`; the configuration runs them with its own (`forge_host.config.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from forge_host.types import Finding

if TYPE_CHECKING:
    from forge_host.config.plan import Plan


def sequence_ratio(plan: Plan) -> Iterable[Finding]:
    """A ratio of the whole response has one advantage to multiply."""
    if "sequence-advantages" not in plan.loss.needs:
        return
    reason = token_level(plan)
    if reason:
        yield Finding(
            "error",
            f"{plan.loss.describe()} has one ratio a response, and {plan.advantage.describe()} gives its tokens "
            f"different advantages ({reason})",
            "take a token-level loss (gspo-token for gspo), or an advantage that is the same for the whole response",
        )


def token_level(plan: Plan) -> str:
    """Why a row's tokens get different advantages, or "" when they do not."""
    if plan.advantage.token_level:
        return "with " + ", ".join(f"{name} {value}" for name, value in plan.advantage.use.config.items())
    if plan.kl.beta > 0 and plan.kl.placement == "reward" and "token_kl" in plan.advantage.takes:
        return "it takes the KL of each token, since kl.placement is reward"
    return ""


def two_penalties(plan: Plan) -> Iterable[Finding]:
    """A loss with its own `beta` (torchforge's) beside the host's KL."""
    own = plan.loss.use.config.get("beta")
    if isinstance(own, (int, float)) and own > 0 and plan.kl.beta > 0 and plan.kl.placement == "loss":
        yield Finding(
            "warning",
            f"{plan.loss.describe()} has its own KL penalty (beta {own:g}) and kl.beta adds another ({plan.kl.beta:g})",
            "set one of them to 0",
        )


def bias_correction(plan: Plan) -> Iterable[Finding]:
    """The KL is multiplied by the loss's ratio, so there has to be one."""
    if not (plan.kl.bias_correction and plan.kl.beta > 0):
        return
    if plan.kl.placement == "reward":
        yield Finding(
            "error", "kl.bias_correction multiplies a penalty in the loss, and kl.placement is reward",
            "set kl.bias_correction to false or kl.placement to loss",
        )  # fmt: skip
    elif not {"old_logprobs", "generator_logprobs"} & plan.loss.takes:
        yield Finding(
            "error", f"kl.bias_correction multiplies by a ratio, and {plan.loss.describe()} has none",
            "set kl.bias_correction to false",
        )  # fmt: skip


def correction_of_what(plan: Plan) -> Iterable[Finding]:
    """The correction compares the generator with the trainer's policy at the start of the step."""
    correction = plan.correction
    if correction.mode != "none" and correction.old_policy == "generator":
        yield Finding(
            "error",
            f"correction.mode is {correction.mode} and correction.old_policy is generator: every weight would be 1, "
            "since the loss's own ratio is already to the generator's policy",
            "set correction.mode to none or correction.old_policy to trainer",
        )


def stale_tokens(plan: Plan) -> Iterable[Finding]:
    """Tokens of older weights that nothing corrects for."""
    age = plan.config.training.max_policy_age
    if age < plan.config.training.sync_interval - 1:
        return  # refused by `policy_age`
    if age == 0 or plan.correction.mode != "none" or plan.correction.old_policy == "generator":
        return
    if "generator_logprobs" in plan.loss.takes:
        return
    yield Finding(
        "warning",
        f"training.max_policy_age is {age}, and nothing corrects for tokens of older weights: the ratio of "
        f"{plan.loss.describe()} is to the trainer's own policy",
        "set correction.old_policy to generator, or correction.mode to truncate",
    )


def fixed_length(plan: Plan) -> Iterable[Finding]:
    """A constant divisor shorter than responses can be is a mistake more often than a wish."""
    length = plan.aggregation.length
    if plan.aggregation.mode == "fixed-length" and length is not None and length <= 0:
        yield Finding("error", f"aggregation.length is {length}", "set the response budget in tokens, or null")
    elif plan.aggregation.mode != "fixed-length" and length is not None:
        mode = plan.aggregation.mode
        yield Finding(
            "warning", f"aggregation.length is {length} and aggregation.mode is {mode}, which has no length",
            "set aggregation.mode to fixed-length or leave length out",
        )  # fmt: skip


def zero_temperature(plan: Plan) -> Iterable[Finding]:
    """Greedy responses are no samples of the policy, so there is no ratio to take."""
    if plan.sampling.temperature == 0 and "groups" not in plan.advantage.needs:  # else `group_baseline` says it
        yield Finding(
            "error", "sampling.temperature is 0, and policy gradients need samples of the policy",
            "set temperature above 0; evaluation has its own",
        )  # fmt: skip


CHECKS: list[Callable[[Plan], Iterable[Finding]]] = [
    sequence_ratio, two_penalties, bias_correction, correction_of_what, stale_tokens, fixed_length, zero_temperature,
]  # fmt: skip
