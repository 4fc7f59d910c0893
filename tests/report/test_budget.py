"""A watcher's share of the time."""

from pathlib import Path

from forge_host.report.budget import Budget
from forge_host.report.system import SystemSampler


def test_dear_work_is_done_rarely() -> None:
    now, done = 0.0, 0
    budget = Budget(0.01, clock=lambda: now)
    for _ in range(1000):  # a call every second, 2 s of work each time it is due
        with budget as due:
            if due:
                done, now = done + 1, now + 2.0
        now += 1.0
    assert done == 5  # 2 s of every 200


def test_calls_between_samples_get_the_last_one(tmp_path: Path) -> None:
    sampler = SystemSampler(share=1e-9)
    first = sampler()
    assert first["system/rss_gb"] > 0 and sampler() is first
    assert SystemSampler()() is not SystemSampler()()
