"""Whole runs of the table model in which something fails at a named point; and that nothing is lost or left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime

import pytest
from fake_runs import ROLES
from processes import KILLED, assert_none_left

from forge_host.errors import UsageError
from forge_host.loop.ledger import check_ledger, read_ledger
from forge_host.testing.faults import Fault, parse, small_disk, started

SERVICES = {
    "generator": {"num_replicas": 2, "max_restarts": 9},
    "reward": {"num_replicas": 2, "max_restarts": 9},
    "ref_model": {"max_restarts": 9},
}


def events(run, name: str) -> list[dict]:
    lines = (run.dir / "logs" / "controller.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == name]


def test_kills_stops_and_closed_sockets_cost_no_episode(fake_run) -> None:
    faults = "; ".join(
        [
            "kill it at generator.generate#9+0.02", "kill it at generator.update_weights#4",
            "close it at generator.generate#25", "stop it at generator.generate#45",
            "kill reward-0 at generator.generate#30", "kill it at reward.score#40+0.01",
            "kill it at ref_model.logprobs#3", "kill generator-1 at trainer.publish#6",
            "pause it 0.5 at trainer.train_step#7",
        ]
    )  # fmt: skip
    run = fake_run(
        faults=faults, training={"max_steps": 14, "max_policy_age": 1}, kl={"beta": 0.01}, services=SERVICES,
        generator={"delay_s": 0.05}, monarch={"shutdown_timeout": 5, "call_timeout": 8},
    )  # fmt: skip
    assert run.code == 0, run.err
    hits = events(run, "fault")
    assert len(hits) == 9 and all(event["hit"] for event in hits), "every fault happened"
    restarts = events(run, "replica lost, restarting")
    assert {event["service"] for event in restarts} == {"generator", "reward", "ref_model"} and len(restarts) >= 6
    assert run.metrics[-1]["step"] == 14 and max(m["metrics"]["policy_age/max"] for m in run.metrics) == 1
    counts = check_ledger(run.dir)
    assert counts["trained"] == 14 * 4 * 8 and counts.get("dropped", 0) == 0
    totals = run.summary["episodes"]
    assert {name: totals[name] for name in ("trained", "dropped", "left")} == {"dropped": 0, "left": 0, **counts}
    trained = {f"{row['group']}/{i}" for row in read_ledger(run.dir) for i in row.get("trained", ())}
    assert trained <= {row["id"] for row in run.rollouts}, "what was trained on is in the rollout record"


@pytest.mark.parametrize("action", ["stop", "kill"])
def test_a_lost_trainer_ends_the_run_in_time_by_name(fake_run, action: str) -> None:
    run = fake_run(
        faults=f"{action} it at trainer.train_step#2+0.2", trainer={"delay_s": 0.5}, checkpoint={"interval": 1},
        monarch={"shutdown_timeout": 5, "call_timeout": 4 if action == "stop" else 60},
    )  # fmt: skip
    ended = time.time()
    assert run.code == 4, run.err
    (process,) = [p for p in started(run.dir) if p.role == "trainer"]
    place = rf"rank 0 on {socket.gethostname()}, pid {process.pid}, "
    what = {
        "stop": rf"trainer-0 did not answer `train_step` within 4 s \({place}stopped\)",
        "kill": rf"trainer-0 died during `train_step` {KILLED} after \d+\.\d s of waiting \({place}ended\)",
    }
    assert re.search(what[action], run.err), run.err
    checkpoint = run.dir / "checkpoints" / "step-000001"
    assert f"checkpoint of step 1, {checkpoint}, with `forge-host run --resume {run.dir}`" in run.err
    (fault,), (failed,) = events(run, "fault"), events(run, "the run failed")
    took = (datetime.fromisoformat(failed["timestamp"]) - datetime.fromisoformat(fault["timestamp"])).total_seconds()
    assert took < (4 if action == "stop" else 20) + 5
    assert ended - datetime.fromisoformat(failed["timestamp"]).timestamp() < 20
    assert check_ledger(run.dir) == {"trained": 32, "left": 32, "dropped": 0}


def test_a_full_disk_is_named_and_the_exit_is_clean(fake_run, tmp_path) -> None:
    (tmp_path / "runs").mkdir()
    command = small_disk(tmp_path / "runs", 4, ["true"])
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this system forbids user namespaces, so there is no small disk without root")
    run = fake_run(wrap=lambda command: small_disk(tmp_path / "runs", 300, command), training={"max_steps": 500})
    assert run.code == 4 and "Traceback" not in run.err, run.err
    assert "could not be written: No space left on device; free space, or set run_dir elsewhere" in run.err


def test_a_second_signal_ends_at_once(fake_config, tmp_path) -> None:
    command = [sys.executable, "-m", "forge_host.cli.main", "run", fake_config(trainer={"delay_s": 600})]
    env = {**os.environ, "FORGE_TEST_MARK": str(tmp_path)}
    command += ["--plugin-file", str(ROLES)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not any("/" in f.read_text() for f in tmp_path.glob("runs/*/rollouts/rollouts.jsonl")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None and any("again to stop at once" in line for line in process.stderr)
        time.sleep(1.2)  # sooner it counts as the same signal, sent twice
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        try:
            assert process.wait(timeout=30) == 130 and time.monotonic() - began < 5
        finally:
            process.kill()
    assert_none_left(str(tmp_path))


def test_faults_are_sentences() -> None:
    assert parse("pause reward-0 2.5 at trainer.train_step#2+0.3;") == [
        Fault("pause", "reward-0", "trainer", "train_step", 2, 2.5, 0.3)
    ]
    for wrong in ("kill it", "pause it at a.b", "burn it at a.b", "kill it 3 at a.b"):
        with pytest.raises(UsageError, match=f"`{wrong}` is no fault; write"):
            parse(wrong)
