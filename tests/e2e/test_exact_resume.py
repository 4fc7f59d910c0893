"""A run resumed after its first step ends as the run that was not interrupted, bit for bit.

vLLM and TorchTitan on two CPU cores. The checkpoint is written in the background; all that came after it is lost, as
when a machine fails.
"""

import json
import shutil
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
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    steps = ["--set", "training.max_steps=2", "--set", "checkpoint.interval=1"]
    forge_host("quickstart", *SMALL, *steps, "--run-dir", str(whole))
    shutil.copytree(whole, resumed, symlinks=True)
    for lost in ("model", "checkpoints/step-000002", "rollouts/rollouts.jsonl"):
        shutil.move(resumed / lost, tmp_path / Path(lost).name)
    assert [path.name for path in (resumed / "checkpoints").iterdir()] == ["step-000001"]
    forge_host("--resume", str(resumed))
    (weights, said), (weights_too, said_too) = left_by(whole), left_by(resumed)
    assert len(said) == 16 and len(said_too) == 8 and said_too.items() <= said.items()
    assert weights == weights_too
