"""Did it learn, is anything wrong: a verdict, and findings with their numbers and what to try. Torch-free.

    learned = trend(run.series("reward/mean")[1])
    for finding in findings(run):
        print(finding.level, finding.title, finding.evidence, finding.remedy)

The rules are plain thresholds, chosen so that a healthy run shows none; each says the values it looked at.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import attrs

from forge_host.report.rundata import Run

Level = Literal["bad", "warning", "note"]
MIN_STEPS = 4  # fewer say nothing about a trend


@attrs.frozen
class Finding:
    level: Level
    title: str
    evidence: str
    remedy: str


def end_steps(count: int) -> int:
    """Steps at each end of `count` whose means are compared: five, fewer where the ends would overlap."""
    return max(min(1, count), min(5, count // 2))


@attrs.frozen
class Trend:
    """Means of the first and last fifth of a series (at least 2 values), and the noise of their difference.

    Args:
        noise: twice the standard error of `last - first`, from the scatter within each end.
    """

    first: float
    last: float
    noise: float

    @property
    def change(self) -> float:
        return self.last - self.first

    @property
    def direction(self) -> int:
        """1 up, -1 down, 0 not told apart from noise."""
        return 0 if abs(self.change) <= max(self.noise, 1e-9) else 1 if self.change > 0 else -1


def trend(values: Sequence[float]) -> Trend | None:
    """None for fewer than MIN_STEPS values."""
    if len(values) < MIN_STEPS:
        return None
    edge = max(2, len(values) // 5)
    first, last = values[:edge], values[-edge:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / edge)
    return Trend(statistics.fmean(first), statistics.fmean(last), 2 * error)


def verdict(run: Run) -> tuple[Level | Literal["good"], str]:
    """One sentence on how the run ended and whether the reward rose, with its level."""
    steps = len(run.rows)
    if run.status == "failed":
        error = str(run.summary.get("error") or "no error was recorded")
        return "bad", f"Failed after step {run.rows[-1]['step'] if run.rows else 0}: {error}"
    ended = {"done": "", "interrupted": " (interrupted)", "unfinished": " so far"}.get(run.status, f" ({run.status})")
    if run.summary.get("kind") == "eval":
        return "note", f"Evaluation{ended}: {_evaluated(run)}."
    if not steps:
        return "warning", f"No finished step{ended}: nothing to say about learning."
    better, name, what = 1, "reward/mean", "mean reward"
    if not run.series(name)[1]:
        better, name, what = -1, "train/loss", "loss"
    t = trend(run.series(name)[1])
    if t is None:
        return "note", f"{steps} step{'s' if steps > 1 else ''}{ended}: too few to say whether it learns."
    numbers = f"{what} {t.first:.3f} \u2192 {t.last:.3f} ({t.change:+.3f}) over {steps} steps{ended}"
    if t.direction == better:
        return "good", f"It learned: {numbers}."
    if t.direction == -better:
        return "bad", f"It got worse: {numbers}."
    return "warning", f"No change beyond noise (\u00b1{t.noise:.3f}): {numbers}."


def findings(run: Run) -> list[Finding]:
    """Everything the rules see in a run, worst first."""
    found = [finding for rule in RULES for finding in rule(run)]
    return sorted(found, key=lambda f: ("bad", "warning", "note").index(f.level))


def _evaluated(run: Run) -> str:
    values = {k.removeprefix("eval/"): v for k, v in (run.summary.get("metrics") or {}).items() if v is not None}
    words = [f"{k} {values[k]:.3f}" for k in ("mean", "greedy/mean") if k in values]
    words += [f"{k} {v:.3f}" for k, v in values.items() if k.startswith("pass@")]
    return ", ".join(words) or "no result"


def _ends(run: Run, name: str) -> Trend | None:
    return trend(run.series(name)[1])


def _late(run: Run, name: str) -> float | None:
    """Mean over the last third."""
    values = run.series(name)[1]
    return statistics.fmean(values[-max(1, len(values) // 3) :]) if values else None


def _not_finite(run: Run) -> Iterator[Finding]:
    bad = {}
    for name in run.names:
        steps, values = run.series(name, finite=False)
        wrong = [s for s, v in zip(steps, values, strict=True) if not math.isfinite(v)]
        if wrong:
            bad[name] = wrong
    if bad:
        first = min(steps[0] for steps in bad.values())
        some = ", ".join(f"{name} at {len(steps)} of {len(run.rows)} steps" for name, steps in list(bad.items())[:4])
        yield Finding(
            "bad", "Metrics that are not numbers", f"first at step {first}: {some}",
            "lower training.learning_rate, set training.max_grad_norm, or train with dtype float32; "
            "go on from a checkpoint before that step",
        )  # fmt: skip


def _entropy_collapse(run: Run) -> Iterator[Finding]:
    t, reward = _ends(run, "policy/entropy"), _ends(run, "reward/mean")
    if t is None or t.last > 0.3 * t.first or t.last > 0.1:
        return
    if reward is not None and reward.last >= 0.9:
        return  # solved: being certain is what was asked for
    rewards = run.series("reward/mean")[1]
    half = trend(rewards[len(rewards) // 2 :])
    stalled = reward is None or half is None or half.direction <= 0
    yield Finding(
        "bad" if stalled else "note", "Entropy collapse",
        f"policy/entropy {t.first:.3f} \u2192 {t.last:.3f} nats/token"
        + (", and the reward stopped improving" if stalled else ""),
        f"{_more_kl(run)}, or add an entropy bonus (training.entropy_coef: 0.01)",
    )  # fmt: skip


def _kl_growth(run: Run) -> Iterator[Finding]:
    t = _ends(run, "policy/kl")
    if t is not None and t.last > 0.5 and t.direction > 0:
        yield Finding(
            "warning", "The policy left the reference", f"policy/kl {t.first:.3f} \u2192 {t.last:.3f} nats/token",
            f"{_more_kl(run)}, or lower training.learning_rate",
        )  # fmt: skip


def _length(run: Run) -> Iterator[Finding]:
    t, cut = _ends(run, "response/length_mean"), _late(run, "response/truncated_share")
    growing = t is not None and t.direction > 0 and t.last > 1.5 * t.first
    if t is not None and growing:
        reward = _ends(run, "reward/mean")
        useless = reward is not None and reward.direction <= 0
        yield Finding(
            "warning" if useless or (cut or 0) > 0.3 else "note", "Responses grow",
            f"response/length_mean {t.first:.0f} \u2192 {t.last:.0f} tokens"
            + (", and the reward did not rise" if useless else ""),
            f"average the loss over tokens ({run.algorithm_key('aggregation')}: token-mean), or use dapo's penalty",
        )  # fmt: skip
    if cut is not None and cut > 0.5:
        yield Finding(
            "warning", "Responses are cut", f"{cut:.0%} of the late responses ended at max_tokens",
            f"raise {run.algorithm_key('max_tokens')}, or leave them out of the loss "
            f"({run.algorithm_key('mask_truncated')}: true)",
        )  # fmt: skip


def _reward_hacking(run: Run) -> Iterator[Finding]:
    reward = _ends(run, "reward/mean")
    for name in ("eval/mean", "eval/greedy/mean"):
        values = run.evaluation(name)[1]
        if reward is None or reward.direction <= 0 or len(values) < 2:
            continue
        best = max(values[:-1])
        margin = max(_late(run, name.replace("mean", "ci95")) or 0.0, 0.01)
        if values[-1] < best - margin:
            yield Finding(
                "bad", "Sign of reward hacking",
                f"reward/mean {reward.first:.3f} \u2192 {reward.last:.3f} while {name} fell from {best:.3f} to "
                f"{values[-1]:.3f}",
                "read the best-rewarded responses (forge-host rollouts RUN --sort=-reward), close what the reward lets "
                f"through, and {_more_kl(run)}",
            )  # fmt: skip
            return


def _constant_part(run: Run) -> Iterator[Finding]:
    if len(run.rows) < MIN_STEPS:
        return
    for name in run.names:
        if not (name.startswith("reward/") and name.endswith("/std")):
            continue
        part = name.removeprefix("reward/").removesuffix("/std")
        spread, mean = run.series(name)[1], run.series(f"reward/{part}/mean")[1]
        if spread and mean and max(spread) < 1e-9 and max(mean) - min(mean) < 1e-9:
            yield Finding(
                "warning", f"Reward part `{part}` never varies", f"it was {mean[0]:g} for every response of every step",
                f"check what it grades (forge-host rollouts RUN --where 'reward/{part}=={mean[0]:g}'), or drop it: "
                "it teaches nothing",
            )  # fmt: skip


def _zero_variance(run: Run) -> Iterator[Finding]:
    share, reward = _late(run, "reward/zero_variance_share"), _late(run, "reward/mean")
    if share is None or share <= 0.5 or len(run.rows) < MIN_STEPS:
        return
    rewards = run.series("reward/mean")[1]
    solved = reward is not None and reward >= 0.9 and reward > rewards[0]
    yield Finding(
        "note" if solved else "warning", "Most groups teach nothing",
        f"in {share:.0%} of the late groups all responses got the same reward (mean reward {reward or 0:.2f})",
        "the task is nearly solved: stop, or take a harder one" if solved else
        f"take prompts of mixed difficulty, raise {run.algorithm_key('n_samples')}, or reject such groups (dapo)",
    )  # fmt: skip


def _mismatch(run: Run) -> Iterator[Finding]:
    values = run.series("policy/generator_kl")[1]
    age = max(run.series("policy_age/max")[1], default=0)
    if values and statistics.median(values) > 0.01:
        yield Finding(
            "warning", "Trainer and generator disagree",
            f"policy/generator_kl has median {statistics.median(values):.3f} and maximum {max(values):.3f} nats/token"
            + (f"; tokens came from weights up to {age:.0f} versions old" if age else ""),
            ("lower training.max_policy_age (what is left at 0 is no matter of age)" if age else
            "set training.verify_weight_sync: true, use one dtype for both")
            + f", or correct for it ({run.algorithm_key('correction')}: truncate)",
        )  # fmt: skip


def _starvation(run: Run) -> Iterator[Finding]:
    wait, sync, host = (_share_of_step(run, f"time/{name}_s") for name in ("generate", "sync", "host"))
    if wait is not None and wait > 0.75:
        yield Finding(
            "warning", "The trainer starves", f"{wait:.0%} of the step is spent waiting for rollouts",
            "add generator replicas (services.generator.num_replicas), let rollouts run ahead (training.max_policy_age:"
            f" 1), or shorten responses ({run.algorithm_key('max_tokens')})",
        )  # fmt: skip
    if sync is not None and sync > 0.3:
        yield Finding(
            "warning", "Weight sync is slow", f"{sync:.0%} of the step goes into publishing and loading weights",
            ("set training.verify_weight_sync: false, " if run.setting("training.verify_weight_sync") else "")
            + "raise training.sync_interval (10), or choose a faster transport (RDMA between hosts)",
        )  # fmt: skip
    if host is not None and host > 0.2:
        yield Finding(
            "note", "The host itself takes time", f"{host:.0%} of the step is neither rollout, training nor sync",
            "look at logs/controller.jsonl; slow trackers and observers count here",
        )  # fmt: skip
    rejected, size = _late(run, "buffer/rejected"), run.setting("training.batch_size")
    if rejected is not None and isinstance(size, int) and rejected > 2 * size:
        yield Finding(
            "warning", "Most rollouts are rejected", f"{rejected:.1f} groups a step for {size} that were trained on",
            "see why: forge-host rollouts RUN --where 'not kept and kind == \"train\"'; mix difficulties",
        )  # fmt: skip


def _errors(run: Run) -> Iterator[Finding]:
    values = run.series("reward/error_rate")[1]
    if values and max(values) > 0.05:
        yield Finding(
            "warning", "Responses that could not be graded",
            f"up to {max(values):.0%} of a step's responses, {statistics.fmean(values):.0%} on average",
            "see the errors: forge-host rollouts RUN --where 'error != None'; fix the reward or raise reward.timeout_s",
        )  # fmt: skip
    shm = run.series("system/shm_share")[1]
    if shm and max(shm) > 0.9:
        yield Finding(
            "warning", "/dev/shm is nearly full", f"up to {max(shm):.0%} in use",
            "enlarge it (docker --shm-size) or choose another transport",
        )  # fmt: skip
    norms = run.series("policy/grad_norm")[1]
    if len(norms) >= MIN_STEPS and not any(norms):
        yield Finding(
            "bad", "No gradient", "policy/grad_norm is 0 at every step",
            "see whether rewards differ within a group, and whether responses are masked",
        )  # fmt: skip


def _more_kl(run: Run) -> str:
    beta = run.setting(run.algorithm_key("beta"))
    now = f"from {beta:g} to {2 * beta or 0.1:g}" if isinstance(beta, (int, float)) else "0.1 to 0.2"
    return f"raise the KL penalty ({run.algorithm_key('beta')}, {now})"


def _share_of_step(run: Run, name: str) -> float | None:
    total, part = sum(run.series("time/step_s")[1]), run.series(name)[1]
    return sum(part) / total if total and len(part) >= MIN_STEPS else None


RULES: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    _not_finite, _reward_hacking, _entropy_collapse, _kl_growth, _length, _constant_part, _zero_variance, _mismatch,
    _starvation, _errors,
)  # fmt: skip
