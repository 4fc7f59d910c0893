"""A conversation of two turns with real generation and training: both sides see the same tokens in the same places."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[1] / "loop" / "fake_environment.py"


@pytest.mark.slow
def test_two_turns_of_smollm2(tmp_path) -> None:
    settings = [
        f"environment={ENVIRONMENT}:SayB", "environment.max_tokens=12", "rewards=[]", "training.batch_size=2",
        "training.max_steps=1", "sampling.n=4", "sampling.max_tokens=64", "monarch.startup_timeout=900",
    ]  # fmt: skip
    command = [sys.executable, "-m", "forge_host.cli.main", "run", "quickstart", "--run-dir", str(tmp_path / "run")]
    command += [f"--set={text}" for text in settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)["metrics"]
    # A shift by one token, or a turn tokenised again, would make these tenths of nats and more.
    assert 0 <= metrics["policy/generator_kl"] < 0.02 and metrics["policy/ratio_max"] < 1.5, metrics
    assert metrics["sync/verified"] and metrics["reward/say-b/turns/mean"] == 2.0
    rows = [json.loads(row) for row in (tmp_path / "run" / "rollouts" / "rollouts.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kept"]]
    assert len(trained) == 8 and all("[user] cab" in row["response"] for row in trained)
    assert all(row["num_tokens"] > 12 for row in trained)
