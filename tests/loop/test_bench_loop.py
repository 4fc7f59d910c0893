"""`forge-host bench loop` on the table model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_none_left

HERE = Path(__file__).parent


def test_a_step_is_taken_apart(fake_config, tmp_path) -> None:
    config = fake_config(generator={"delay_s": 0.2}, trainer={"delay_s": 0.3}, training={"batch_size": 2})
    command = [sys.executable, "-m", "forge_host.cli.main", "bench", "loop", config, "--plugin-file"]
    command += [str(HERE / "fake_roles.py"), "--steps", "3", "--warmup", "1", "--json", "--run-dir"]
    command += [str(tmp_path / "r")]
    env = {**os.environ, "FORGE_TEST_MARK": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert_none_left(str(tmp_path))
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["generation_s"] >= 0.2 and found["training_s"] >= 0.3
    assert found["sum_s"] == pytest.approx(found["generation_s"] + found["training_s"])
    assert found["sync_step_s"] >= 0.5, "one after the other"
    assert found["async_step_s"] < 0.9 * found["sync_step_s"], "generation goes on beside training"
