"""Whole runs of the table model: what is left behind, what is learnt, and how each failure ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from processes import KILLED, assert_none_left

HERE = Path(__file__).parent
ROLES = HERE / "fake_roles.py"


def test_a_run_learns_and_leaves_its_record(fake_run) -> None:
    run = fake_run(training={"max_steps": 25}, report=True)
    assert run.code == 0, run.err
    metrics = run.metrics
    assert [m["step"] for m in metrics] == list(range(1, 26)) and metrics[-1]["policy_version"] == 25
    rewards = [m["metrics"]["reward/mean"] for m in metrics]
    assert sum(rewards[-5:]) - sum(rewards[:5]) > 5 * 0.3, rewards
    assert all(m["metrics"]["policy_age/max"] == 0 for m in metrics)
    assert metrics[-1]["metrics"]["sync/verified"] == 25, "the generator's weights equal the trainer's after every step"
    names = (
        "time/generate_s", "time/train_s", "time/sync_s", "time/sync_pause_s", "time/host_s", "tokens/per_s",
        "reward/share-of-b/mean",
    )  # fmt: skip
    for name in names:
        assert name in metrics[-1]["metrics"]
    names = {p.name for p in run.dir.iterdir()}
    assert names >= {
        "config.resolved.yaml",
        "plugins.lock",
        "metrics.jsonl",
        "summary.json",
        "rollouts",
        "logs",
        "model",
        "report.html",
    }
    kept = Counter(row["id"] for row in run.rollouts if row["kept"])
    assert len(kept) == 25 * 4 * 8 and set(kept.values()) == {1}, "no episode is trained on twice"
    assert {"generator-0.0.log", "trainer-0.0.log", "reward-0.0.log"} <= {p.name for p in (run.dir / "logs").iterdir()}
    summary = run.summary
    assert summary["status"] == "done" and len(summary["samples"]) == 3
    assert "mean reward" in run.out and str(run.dir) in run.out


def test_asynchronous_rollouts_keep_the_bound(fake_run) -> None:
    age = 2
    first = 3 + 4 * (age + 1)  # probes, and the groups that may start with the first weights: before newer ones come
    generator = {"update_after": first, "slow_every": 5}
    run = fake_run(training={"max_steps": 12, "max_policy_age": age}, generator=generator)
    assert run.code == 0, run.err
    ages = [m["metrics"]["policy_age/max"] for m in run.metrics]
    assert max(ages) == age, "rollouts run ahead, and never further than allowed"
    assert run.metrics[-1]["metrics"]["sync/verified"] >= 11


def test_weights_are_published_every_sync_interval(fake_run) -> None:
    run = fake_run(training={"max_steps": 6, "sync_interval": 3})
    assert [m["policy_version"] for m in run.metrics] == [0, 0, 1, 1, 1, 2]


def test_a_dead_generator_is_replaced_with_the_newest_weights(fake_run, tmp_path) -> None:
    run = fake_run(training={"max_steps": 6}, generator={"die_at": 12, "flag": str(tmp_path / "died")})
    assert run.code == 0, run.err
    assert (tmp_path / "died").exists() and "replica lost, restarting" in run.err
    assert len(run.metrics) == 6 and (run.dir / "logs" / "generator-0-r1.0.log").exists()
    kept = Counter(row["id"] for row in run.rollouts if row["kept"])
    assert set(kept.values()) == {1} and len(kept) == 6 * 4 * 8


def test_a_dead_trainer_ends_the_run_by_name(fake_run) -> None:
    run = fake_run(trainer={"die_at": 2}, report=True)
    assert run.code == 4
    assert re.search(f"error: trainer-0 died during `train_step` {KILLED}", run.err) and "Traceback" not in run.err
    assert run.summary["status"] == "failed" and len(run.metrics) == 1
    assert "Failed after step 1: trainer-0 died" in (run.dir / "report.html").read_text(), "a failed run has its report"


def test_weights_that_differ_are_refused(fake_run) -> None:
    run = fake_run(generator={"wrong_weights": True})
    assert run.code == 4 and "the generator's weights of version 1 differ from the trainer's" in run.err


def test_tokens_without_a_version_are_refused(fake_run) -> None:
    run = fake_run(generator={"no_versions": True})
    assert run.code == 4 and "no token is trained on without one" in run.err


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("raises", "100% of the responses could not be graded"),
        ("text", "str"),
        ("hangs", "0.5 s"),
    ],
)
def test_a_bad_reward_ends_the_run_by_name(fake_run, reward: str, words: str) -> None:
    run = fake_run(rewards=[f"{ROLES}:{reward}"], reward={"timeout_s": 0.5})
    assert run.code == 4, run.err
    assert reward in run.err and words in run.err and "Traceback" not in run.err


def test_failing_rewards_cost_episodes_not_zeros(fake_run) -> None:
    run = fake_run(rewards=[f"{ROLES}:sometimes_raises"], reward={"max_reward_errors": 0.9})
    assert run.code == 0, run.err
    failed = [row for row in run.rollouts if row["error"]]
    assert failed and all(row["reward"] is None and not row["kept"] for row in failed)
    assert any("ZeroDivisionError" in row["error"] for row in failed)
    assert any(m["metrics"]["reward/error_rate"] > 0 for m in run.metrics)


def test_starvation_says_why(fake_run) -> None:
    run = fake_run(rewards=[f"{ROLES}:constant"], sampler={"use": "group", "drop_equal": True})
    assert run.code == 4 and "starved: the last 200 groups were all rejected" in run.err, run.err


def test_interrupt_ends_cleanly_with_the_weights(fake_config, tmp_path) -> None:
    command = [sys.executable, "-m", "forge_host.cli.main", "run", fake_config(training={"max_steps": 10_000})]
    env = {**os.environ, "FORGE_TEST_MARK": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--plugin-file", str(ROLES)], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(f.read_text() for f in tmp_path.glob("runs/*/metrics.jsonl")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # as `timeout` does: to the process, then to its group
        _, err = process.communicate(timeout=60)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert process.returncode == 130, err
    assert_none_left(str(tmp_path))
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "interrupted"
    assert (run_dir / "model").is_dir()


def test_arguments_nobody_provides_are_refused_before_any_process_starts(fake_run, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def reward(promt):\n    return 0.0\n\n\ndef loss(logits):\n    return logits\n")
    for section in ({"rewards": [f"{tmp_path / 'mine.py'}:reward"]}, {"loss": f"{tmp_path / 'mine.py'}:loss"}):
        run = fake_run(**section)
        assert run.code == 3 and "which does not exist" in run.err and run.dir is None, run.err


def test_an_interrupt_ends_a_run_whose_generator_hangs(fake_config, tmp_path) -> None:
    config = fake_config(generator={"delay_s": 600.0})
    command = [sys.executable, "-m", "forge_host.cli.main", "run", config, "--plugin-file", str(ROLES)]
    env = {**os.environ, "FORGE_TEST_MARK": str(tmp_path)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list(tmp_path.glob("runs/*/logs/reward-0.0.log")):
            time.sleep(0.1)
        time.sleep(3.0)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err, err
    assert_none_left(str(tmp_path))


def test_the_generator_sleeps_while_the_trainer_trains(fake_run, tmp_path) -> None:
    """A synchronous step: generate, sleep, train and publish, wake, load."""
    diary = tmp_path / "diary"
    run = fake_run(generator={"use": "fake-roles/fake", "sleep_between_steps": True, "diary": str(diary)})
    assert run.code == 0, run.err
    assert diary.read_text() == "swu" * 3
