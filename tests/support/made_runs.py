"""What a run writes: metrics of a healthy run, and lines of the rollout record."""

CONFIG = """\
model: smollm2
algorithm: grpo/grpo
grpo: {n_samples: 4, beta: 0.0}
training: {batch_size: 4, max_steps: 20}
name: made
"""


def healthy(step: int, steps: int) -> dict[str, float]:
    """Metrics of a run that learns and shows no finding."""
    share = step / steps
    return {
        "reward/mean": 0.2 + 0.5 * share, "reward/std": 0.4, "reward/num_graded": 16.0, "reward/error_rate": 0.0,
        "reward/zero_variance_share": 0.2, "reward/math/mean": 0.2 + 0.5 * share, "reward/math/std": 0.4,
        "policy/kl": 0.01 * share, "policy/entropy": 1.2 - 0.4 * share, "policy/clip_low": 0.01 * share,
        "policy/clip_high": 0.02 * share, "policy/generator_kl": 0.001, "policy/grad_norm": 1.0 + share,
        "response/length_mean": 100.0 + 5 * share, "response/truncated_share": 0.1, "policy_age/max": 1.0,
        "policy_age/mean": 0.5 + 0.1 * share, "time/step_s": 10.0, "time/generate_s": 4.0, "time/train_s": 5.0,
        "time/sync_s": 0.5, "time/host_s": 0.5, "tokens/per_s": 900.0 + step, "system/rss_gb": 4.0 + share,
    }  # fmt: skip


def episode(step: int, number: int, **values: object) -> dict[str, object]:
    """A line of the rollout record."""
    return {
        "step": step, "id": f"{step}/{number}", "prompt_id": f"p{number % 9}", "prompt": f"What is {number % 9} + 1?",
        "target": str(number % 9 + 1), "response": f"it is {number}", "num_tokens": 5 + number % 7,
        "finish_reason": "stop", "policy_versions": [step - 1, step - 1], "reward": float(number % 2),
        "parts": {"math": float(number % 2)}, "note": "", "error": None, "kept": True, "reason": "", **values,
    }  # fmt: skip
