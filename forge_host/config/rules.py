"""Checks of a whole plan, made before any process starts. Each gives findings; one of level "error" stops the run.

Add a rule by appending a function to `checks`; a plugin adds its own with the hook `forge_check_plan`.

    def no_greedy(plan):
        if plan.sampling.temperature == 0:
            yield Finding("warning", "greedy sampling explores nothing", "raise sampling.temperature")

    checks.append(no_greedy)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forge_host.config.plan import Plan
from forge_host.config.schema import RunConfig, ServiceConfig
from forge_host.rl.checks import CHECKS as RL_CHECKS
from forge_host.types import Finding

Check = Callable[[Plan], Iterable[Finding]]


def sampling_key(plan: Plan, field: str) -> str:
    """The key a user would change for a sampling parameter: the algorithm's own (`grpo.n_samples`) when it has one."""
    own = {"n": "n_samples"}.get(field, field)
    if own in plan.algorithm.use.config and field not in plan.config.sampling:
        return f"{plan.algorithm.name if plan.algorithm.plugin else 'algorithm'}.{own}"
    return f"sampling.{field}"


def group_baseline(plan: Plan) -> Iterable[Finding]:
    if "groups" not in plan.advantage.needs:
        return
    if plan.sampling.n == 1:
        key = sampling_key(plan, "n")
        yield Finding(
            "error",
            f"{plan.advantage.describe()} compares the responses to one prompt, and {key} is 1",
            f"set {key} to 2 or more",
        )
    elif plan.sampling.temperature == 0:
        key = sampling_key(plan, "temperature")
        yield Finding(
            "error",
            f"{plan.advantage.describe()} compares the responses to one prompt, and with {key} 0 they are all the same",
            f"set {key} above 0",
        )


def unfiltered_sampling(plan: Plan) -> Iterable[Finding]:
    if "unfiltered-sampling" not in plan.needs or (plan.sampling.top_p == 1 and plan.sampling.top_k == 0):
        return
    owners = [part.describe() for part in plan.parts() if "unfiltered-sampling" in part.needs]
    who = ", ".join(owners) or f"correction.mode {plan.correction.mode}"
    yield Finding(
        "error",
        f"{who} needs the log-probabilities of unfiltered sampling, and top_p is {plan.sampling.top_p:g}, "
        f"top_k is {plan.sampling.top_k}",
        "set top_p to 1 and top_k to 0",
    )


def response_fits(plan: Plan) -> Iterable[Finding]:
    if not plan.offline and plan.sampling.max_tokens >= plan.config.training.seq_len:
        key = sampling_key(plan, "max_tokens")
        yield Finding(
            "error",
            f"{key} is {plan.sampling.max_tokens} and training.seq_len is {plan.config.training.seq_len}, "
            "which leaves no room for a prompt",
            f"raise training.seq_len or lower {key}",
        )


def data_parallel_degree(config: RunConfig) -> int | None:
    """Trainer processes that see different rows; None when the processes cannot be split as `parallelism` says."""
    parallelism, world = config.parallelism, config.services["trainer"].procs
    split = (
        parallelism.tensor_parallel_degree * parallelism.pipeline_parallel_degree * parallelism.context_parallel_degree
    )
    replicate, shard = parallelism.data_parallel_replicate_degree, parallelism.data_parallel_shard_degree
    if shard == -1:
        return world // split if world % (split * replicate) == 0 else None
    return replicate * shard if split * replicate * shard == world else None


def trainer_processes(plan: Plan) -> Iterable[Finding]:
    parallelism = plan.config.parallelism
    shard = parallelism.data_parallel_shard_degree
    if shard == 0 or shard < -1:
        yield Finding(
            "error", f"parallelism.data_parallel_shard_degree is {shard}", "set 1 or more, or -1 for what is left"
        )
        return
    degree = data_parallel_degree(plan.config)
    if degree is None:
        degrees = {
            "tensor": parallelism.tensor_parallel_degree, "pipeline": parallelism.pipeline_parallel_degree,
            "context": parallelism.context_parallel_degree, "replicate": parallelism.data_parallel_replicate_degree,
            "shard": max(shard, 1),
        }  # fmt: skip
        product = 1
        for value in degrees.values():
            product *= value
        shown = " x ".join(f"{name} {value}" for name, value in degrees.items() if value > 1) or "no split"
        world = plan.config.services["trainer"].procs
        times = "a multiple of " if shard == -1 else ""
        has = f"{world} process{'es' if world > 1 else ''}"
        yield Finding(
            "error", f"parallelism ({shown}) needs {times}{product} trainer processes and services.trainer gives {has}",
            f"add --trainer.procs {product} or lower a degree",
        )  # fmt: skip
        return
    rows = plan.config.training.batch_size * plan.sampling.n
    micro = plan.config.training.gradient_accumulation_steps
    if rows < micro * degree:
        yield Finding(
            "error",
            f"a step has {rows} responses (training.batch_size {plan.config.training.batch_size} x {plan.sampling.n} "
            f"samples), fewer than gradient_accumulation_steps {micro} x {degree} data-parallel ranks",
            "raise training.batch_size or lower training.gradient_accumulation_steps",
        )


def policy_age(plan: Plan) -> Iterable[Finding]:
    interval, age = plan.config.training.sync_interval, plan.config.training.max_policy_age
    if interval - 1 > age:
        yield Finding(
            "error",
            f"with training.sync_interval {interval} tokens get up to {interval - 1} steps old, "
            f"and training.max_policy_age is {age}",
            f"set training.max_policy_age to {interval - 1} or more",
        )


def correction_bounds(plan: Plan) -> Iterable[Finding]:
    correction = plan.correction
    if correction.mode == "none":
        return
    if correction.low is None and correction.high is None:
        yield Finding(
            "error", f"correction.mode is {correction.mode} without a bound", "set correction.low or correction.high"
        )
    elif correction.low is not None and correction.high is not None and correction.low > correction.high:
        yield Finding(
            "error", f"correction.low {correction.low:g} is above correction.high {correction.high:g}", "swap them"
        )


def colocation(plan: Plan) -> Iterable[Finding]:
    for role, service in plan.config.services.items():
        other = service.colocate_with
        if other is None:
            continue
        if other == role or other not in plan.config.services:
            others = ", ".join(name for name in plan.config.services if name != role)
            yield Finding("error", f"services.{role}.colocate_with is {other}", f"name another role: {others}")


def reward_weights(plan: Plan) -> Iterable[Finding]:
    """A mean needs weights to divide by; those of an environment are 1."""
    weights = [weight for _, weight in plan.rewards] + [1.0] * (plan.environment is not None)
    if weights and sum(weights) <= 0 and plan.config.reward.mode == "mean":
        yield Finding(
            "error", f"the weights of the rewards add up to {sum(weights):g}, and reward.mode is mean",
            "give one a weight above 0, or set reward.mode to sum",
        )  # fmt: skip


def unused_reference(plan: Plan) -> Iterable[Finding]:
    if plan.config.services["ref_model"] == ServiceConfig():
        return
    if plan.needs_ref_logprobs and plan.trainer_is_reference:
        yield Finding(
            "note", "services.ref_model is configured but not started, since the trainer without its adapters is it",
            "set trainer.lora_rank to 0 to have one",
        )  # fmt: skip
    elif not plan.needs_ref_logprobs:
        yield Finding(
            "note", "services.ref_model is configured but not started, since nothing needs reference log-probabilities",
            "set the algorithm's beta above 0 to use it",
        )  # fmt: skip


checks: list[Check] = [
    group_baseline, unfiltered_sampling, response_fits, trainer_processes, policy_age, correction_bounds, colocation,
    reward_weights, unused_reference, *RL_CHECKS,
]  # fmt: skip


def run_checks(plan: Plan) -> list[Finding]:
    """What every registered check has to say, in order."""
    return [finding for check in checks for finding in check(plan)]
