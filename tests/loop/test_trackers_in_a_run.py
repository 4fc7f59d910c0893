"""Several trackers at once in a whole run, and one that breaks: it is detached, and the run goes on."""

from pathlib import Path

BROKEN = '''
"""A tracker that raises at its second step."""
import attrs


@attrs.define
class Broken:
    def start(self, run): ...

    def log(self, report):
        if report.step == 2:
            raise OSError("the disk of the tracker is full")

    def finish(self, summary):
        raise AssertionError("called after it was detached")
'''


def test_all_trackers_see_the_run_and_a_broken_one_is_detached(fake_run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN)
    trackers = ["console", "jsonl", "tensorboard", "wandb", "trackio", f"{broken}:Broken"]
    run = fake_run(trackers=trackers, training={"max_steps": 3})
    assert run.code == 0, run.err
    assert "tracker detached" in run.err and "the disk of the tracker is full" in run.err
    assert [m["step"] for m in run.metrics] == [1, 2, 3]
    assert list(run.dir.glob("tensorboard/events.out.*")) and list(run.dir.glob("wandb/offline-run-*/*.wandb"))
    assert "wandb sync" in run.err and list(tmp_path.glob("trackio/forge-host*"))
    assert "rackio" not in run.out
    known = run.metrics[-1]["metrics"]
    assert known["system/rss_gb"] > 0 and known["reward/num_graded"] == 32.0
