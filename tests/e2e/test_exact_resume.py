"""Two steps of the real thing are one step, a stop and one more, bit for bit: vLLM, TorchTitan, two CPU cores.

The checkpoint between them is written in the background.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import xxhash

pytest.importorskip("vllm", reason="vLLM is not installed: make setup")
pytest.importorskip("torchtitan", reason="TorchTitan is not installed: make setup")
pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU sums depend on the batch"),
]  # fmt: skip

SMALL = ["--set", "training.batch_size=2", "--set", "sampling.n=4", "--set", "sampling.max_tokens=8"]


def forge_host(*arguments: str) -> None:
    command = [sys.executable, "-m", "forge_host.cli.main", "run", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def left_by(run: Path) -> tuple[str, dict[str, tuple[str, float]]]:
    """The digest of the weights, and what was said for which reward."""
    rows = [json.loads(line) for line in (run / "rollouts" / "rollouts.jsonl").read_text().splitlines()]
    weights = (run / "model" / "model.safetensors").read_bytes()
    said = {row["id"]: (row["response"], row["reward"]) for row in rows if row["kept"]}
    return xxhash.xxh3_128_hexdigest(weights), said


def test_resume_is_exact(tmp_path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    forge_host("quickstart", *SMALL, "--set", "training.max_steps=2", "--run-dir", str(whole))
    forge_host(
        "quickstart", *SMALL, "--set", "training.max_steps=1", "--set", "checkpoint.interval=1",
        "--run-dir", str(halves),
    )  # fmt: skip
    forge_host("--resume", str(halves), "--set", "training.max_steps=2")
    (weights, said), (weights_too, said_too) = left_by(whole), left_by(halves)
    assert len(said) == 16 and said == said_too
    assert weights == weights_too
