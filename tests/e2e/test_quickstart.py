"""The real thing on the CPU: Monarch, vLLM, TorchTitan, SmolLM2, as a user starts them. Two runs, many checks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_none_left

pytest.importorskip("vllm", reason="vLLM is not installed: make setup")
pytest.importorskip("torchtitan", reason="TorchTitan is not installed: make setup")
GSM8K = Path(os.environ.get("FORGE_HOST_GSM8K", Path(__file__).parents[3] / "shared" / "data" / "gsm8k"))

SEED = '''
import re
import torch
import torch.nn as nn


class CustomLoss(nn.Module):
    def __init__(self, clip_range: float = 0.2, beta: float = 0.1):
        super().__init__()
        self.clip_range = clip_range
        self.beta = beta

    def forward(
        self,
        logprobs: torch.Tensor,
        ref_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        padding_mask: torch.Tensor,
    ) -> torch.Tensor:
        # Compute importance ratio
        ratio = torch.exp(logprobs - ref_logprobs)

        # Clipped policy gradient
        clipped_ratio = torch.clamp(
            ratio,
            1 - self.clip_range,
            1 + self.clip_range
        )
        pg_loss = -torch.min(ratio * advantages, clipped_ratio * advantages)

        # KL penalty
        kl = ref_logprobs - logprobs

        # Apply mask and aggregate
        masked_loss = (pg_loss + self.beta * kl) * padding_mask
        loss = masked_loss.sum() / padding_mask.sum()

        return loss


class CustomMathReward:
    def __call__(self, prompt: str, response: str, target: str) -> float:
        # Extract answer from response
        match = re.search(r'\\\\boxed{([^}]+)}', response)
        if not match:
            return 0.0

        answer = match.group(1).strip()
        return 1.0 if answer == target else 0.0
'''


class Run:
    def __init__(self, directory: Path, *args: str) -> None:
        command = [sys.executable, "-m", "forge_host.cli.main", "run", "quickstart", "--run-dir", str(directory), *args]
        env = {**os.environ, "FORGE_TEST_MARK": str(directory)}
        self.done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
        self.dir = directory
        assert self.done.returncode == 0, self.done.stderr
        assert_none_left(str(directory))

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line)["metrics"] for line in (self.dir / "metrics.jsonl").read_text().splitlines()]

    @property
    def rollouts(self) -> list[dict]:
        return [json.loads(line) for line in (self.dir / "rollouts" / "rollouts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Run:
    """Three steps of the shipped recipe with a second, third-party reward taken by name."""
    rewards = "rewards=[math, {use: brevity, weight: 0.5}]"
    return Run(tmp_path_factory.mktemp("run") / "quickstart", "--set", "training.max_steps=3", "--set", rewards)


def test_it_trains_and_says_so(quickstart: Run) -> None:
    assert len(quickstart.metrics) == 3
    assert all(set(m) >= {"policy/loss", "policy/grad_norm", "tokens/useful_share"} for m in quickstart.metrics)
    assert all(m["policy/grad_norm"] > 0 and m["tokens/useful_share"] == 1.0 for m in quickstart.metrics)
    assert "mean reward" in quickstart.done.stdout and str(quickstart.dir) in quickstart.done.stdout
    assert "Traceback" not in quickstart.done.stderr


def test_every_weight_sync_was_verified(quickstart: Run) -> None:
    assert quickstart.metrics[-1]["sync/verified"] == 3


def test_every_token_has_the_version_that_made_it(quickstart: Run) -> None:
    assert all(m["policy_age/max"] == 0 for m in quickstart.metrics)
    kept = [row for row in quickstart.rollouts if row["kept"]]
    assert len(kept) == 3 * 64 and all(row["policy_versions"] == [row["step"] - 1] * 2 for row in kept)


def test_trainer_and_generator_agree_on_the_log_probabilities(quickstart: Run) -> None:
    assert all(m["policy/generator_kl"] < 0.02 for m in quickstart.metrics)


def test_a_third_partys_reward_counts_by_name(quickstart: Run) -> None:
    assert all("reward/brevity/mean" in m and "reward/math/mean" in m for m in quickstart.metrics)
    assert any("brevity" in row["parts"] for row in quickstart.rollouts)


def test_the_trained_model_is_an_ordinary_one(quickstart: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = quickstart.dir / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert sum(p.numel() for p in model.parameters()) > 100e6


def test_the_run_can_be_run_again(quickstart: Run) -> None:
    command = [sys.executable, "-m", "forge_host.cli.main", "rerun", str(quickstart.dir), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (GSM8K / "train.jsonl").is_file(), reason="GSM8K is not there: set FORGE_HOST_GSM8K")
def test_the_seeds_classes_from_a_file_on_gsm8k(tmp_path) -> None:
    """The seed's loss needs reference log-probabilities, so this starts the reference model too."""
    seed = tmp_path / "seed.py"
    seed.write_text(SEED)
    run = Run(
        tmp_path / "gsm8k", "--set", f"dataset.path={GSM8K / 'train.jsonl'}", "--set", f"loss={seed}:CustomLoss",
        "--set", f"rewards=[math, '{seed}:CustomMathReward']", "--set", "training.max_steps=2",
        "--set", "training.batch_size=2", "--set", "training.seq_len=512",
    )  # fmt: skip
    assert len(run.metrics) == 2
    assert all("time/ref_s" in m and "reward/custom-math-reward/mean" in m for m in run.metrics)
