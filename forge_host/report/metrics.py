"""Every metric the host writes: its unit, what it means and how shares of it become one number. Torch-free.

    describe("policy/kl").unit           # "nats/token"
    describe("reward/math/mean").help    # "mean of the reward part `math`"

Names have slashes; a `*` stands for what a configuration names (a reward, a category, a device). `metrics.jsonl` may
hold other names too, those of a plugin's trainer for example; `describe` answers None for them.
"""

from __future__ import annotations

import re
from functools import cache

import attrs


@attrs.frozen
class Metric:
    """One metric, or a family of them when `name` has a `*`.

    Args:
        unit: "" for a plain number, "share" for 0..1.
        reduction: over the micro-batches, ranks, responses or groups of a step: mean, sum, max, last, or ess
            (effective sample size).
    """

    name: str
    unit: str
    reduction: str
    help: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.name).replace(r"\*", "(.+)"))


REGISTRY: tuple[Metric, ...] = (
    Metric("reward/mean", "", "mean", "mean reward of the graded responses"),
    Metric("reward/std", "", "mean", "standard deviation of the reward over the responses"),
    Metric("reward/num_graded", "responses", "sum", "responses with a reward"),
    Metric("reward/error_rate", "share", "mean", "responses that could not be graded"),
    Metric("reward/zero_variance_share", "share", "mean", "groups whose responses all got the same reward"),
    Metric("reward/*/mean", "", "mean", "mean of the reward part `*`"),
    Metric("reward/*/std", "", "mean", "standard deviation of the reward part `*`"),
    Metric("reward/*/error_rate", "share", "mean", "responses without a value of the reward part `*`"),
    Metric("eval/num_prompts", "prompts", "last", "held-out prompts"),
    Metric("eval/mean", "", "mean", "mean reward on held-out prompts, sampled"),
    Metric("eval/greedy/mean", "", "mean", "mean reward on held-out prompts, greedy"),
    Metric("eval/ci95", "", "last", "half-width of the 95% interval of eval/mean"),
    Metric("eval/greedy/ci95", "", "last", "half-width of the 95% interval of eval/greedy/mean"),
    Metric("eval/pass@*", "share", "mean", "held-out prompts solved by at least one of * samples"),
    Metric("eval/category/*/mean", "", "mean", "mean reward on held-out prompts of category `*`"),
    Metric("eval/greedy/category/*/mean", "", "mean", "mean greedy reward on held-out prompts of category `*`"),
    Metric("eval/error_rate", "share", "mean", "held-out responses that could not be graded"),
    Metric("eval/greedy/error_rate", "share", "mean", "held-out greedy responses that could not be graded"),
    Metric("eval/length_mean", "tokens", "mean", "length of held-out responses"),
    Metric("eval/greedy/length_mean", "tokens", "mean", "length of held-out greedy responses"),
    Metric("train/loss", "", "sum", "the trainer's loss, penalties included; in supervised training nats a token"),
    Metric("eval/loss", "nats/token", "mean", "loss on held-out examples"),
    Metric("policy/loss", "", "sum", "policy loss, without penalties"),
    Metric("policy/kl", "nats/token", "mean", "KL divergence from the reference model"),
    Metric("policy/entropy", "nats/token", "mean", "entropy of the policy"),
    Metric("policy/ratio_mean", "", "mean", "probability ratio new / old policy"),
    Metric("policy/ratio_max", "", "max", "largest probability ratio"),
    Metric("policy/clip_low", "share", "mean", "tokens at which the lower bound took effect"),
    Metric("policy/clip_high", "share", "mean", "tokens at which the upper bound took effect"),
    Metric("policy/dropped_tokens", "tokens", "sum", "tokens left out: a log-probability was not finite"),
    Metric("policy/effective_sample_size", "share", "ess", "effective sample size of the weights"),
    Metric("policy/generator_kl", "nats/token", "mean", "KL divergence of the trainer from the generator"),
    Metric("policy/grad_norm", "", "last", "gradient norm before clipping"),
    Metric("policy/learning_rate", "", "last", "learning rate"),
    Metric("correction/clipped", "share", "mean", "tokens whose importance correction was bounded"),
    Metric("correction/masked", "share", "mean", "tokens whose importance correction was set to 0"),
    Metric("policy_age/max", "versions", "max", "age of the oldest trained token"),
    Metric("policy_age/mean", "versions", "mean", "mean age of the trained tokens"),
    Metric("response/length_mean", "tokens", "mean", "response length"),
    Metric("response/truncated_share", "share", "mean", "responses cut at max_tokens"),
    Metric("buffer/ready", "groups", "last", "groups waiting for the trainer"),
    Metric("buffer/rejected", "groups", "sum", "groups the sampler rejected in this step"),
    Metric("sync/verified", "syncs", "last", "weight syncs whose checksums agreed, so far"),
    Metric("tokens/generated", "tokens", "sum", "tokens generated in this step"),
    Metric("tokens/per_s", "tokens/s", "mean", "tokens generated per second of the step"),
    Metric("tokens/trained", "tokens", "sum", "response tokens trained on"),
    Metric("tokens/packed", "tokens", "sum", "tokens of the packed examples (supervised training)"),
    Metric("data/epoch", "epochs", "last", "pass over the examples"),
    Metric("data/left_out", "prompts", "last", "prompts left out so far, as they were too long"),
    Metric("data/skipped", "prompts", "last", "prompts the dataset passed over so far, as a curriculum does"),
    Metric("data/truncated", "examples", "last", "examples cut to the longest length so far"),
    Metric("data/dropped", "examples", "last", "examples left out so far, as they did not fit"),
    Metric("tokens/forward", "tokens", "sum", "tokens the forward pass computed"),
    Metric("tokens/train_per_s", "tokens/s", "mean", "tokens trained per second of training"),
    Metric("tokens/useful_share", "share", "mean", "tokens of the forward pass that were not padding"),
    Metric("tokens/shared_share", "share", "mean", "prompt tokens saved by sharing prompts"),
    Metric("time/step_s", "s", "last", "the whole step, evaluation aside"),
    Metric("time/generate_s", "s", "last", "the trainer's wait for rollouts"),
    Metric("time/train_s", "s", "last", "forward, backward and optimizer"),
    Metric("time/forward_backward_s", "s", "last", "forward and backward pass"),
    Metric("time/queue_s", "s", "last", "the part of it that the host took to hand work to the GPU"),
    Metric("time/optimizer_s", "s", "last", "optimizer"),
    Metric("time/data_s", "s", "last", "reading and packing examples (supervised training)"),
    Metric("time/ref_s", "s", "last", "reference log-probabilities"),
    Metric("time/reward_s", "s", "sum", "grading, in parallel with generation"),
    Metric("time/sync_s", "s", "last", "publishing and loading weights"),
    Metric("time/sync_pause_s", "s", "last", "a generator making no tokens while it loads weights; the longest"),
    Metric("sync/pause_s", "s", "last", "a generator making no tokens while it loaded weights, since its start"),
    Metric("time/host_s", "s", "last", "what is left of the step: the host's own work"),
    Metric("time/evaluation_s", "s", "last", "evaluation on held-out prompts"),
    Metric("system/cpu_share", "share", "mean", "the machine's processors in use since the last step"),
    Metric("system/rss_gb", "GB", "last", "memory of the run's processes on this machine; shared pages count twice"),
    Metric("system/memory_used_gb", "GB", "last", "memory in use on this machine"),
    Metric("system/shm_used_gb", "GB", "last", "space in use in /dev/shm"),
    Metric("system/shm_share", "share", "last", "part of /dev/shm in use"),
    Metric("system/gpu*/memory_used_gb", "GB", "last", "memory in use on GPU *"),
    Metric("system/gpu*/utilisation", "share", "last", "time GPU * was busy, as its driver measures it"),
)


@cache
def describe(name: str) -> Metric | None:
    """The registry's entry for a metric, its `*` filled in; None when the host does not know it."""
    for metric in REGISTRY:
        if metric.name == name:
            return metric
    for metric in REGISTRY:
        found = metric.pattern.fullmatch(name) if "*" in metric.name else None
        if found:
            return attrs.evolve(metric, name=name, help=metric.help.replace("*", found.group(1)))
    return None


def label(name: str) -> str:
    """`policy/kl (nats/token)`, for axes and tables."""
    metric = describe(name)
    return f"{name} ({metric.unit})" if metric is not None and metric.unit else name
