"""`forge-host run --check`: inside the expected curve ends with 0, outside with 4, what cannot be compared with 2."""

import json
from pathlib import Path


def curve(path: Path, low: float, high: float) -> str:
    reference = {
        "recipe": "fake", "settings": {"name": "fake", "training.batch_size": 4}, "metric": "reward/mean", "window": 2,
        "steps": [1, 2, 3], "low": [low] * 3, "high": [high] * 3, "final_at_least": low, "runs": "made up",
    }  # fmt: skip
    path.write_text(json.dumps(reference))
    return str(path)


def test_a_run_inside_its_curve_passes_and_one_outside_does_not(fake_run, tmp_path) -> None:
    inside = fake_run("--reference", curve(tmp_path / "inside.json", 0.0, 1.0))
    assert inside.code == 0 and "check: inside the expected curve of fake (made up)" in inside.out, inside.err
    outside = fake_run("--reference", curve(tmp_path / "outside.json", 2.0, 3.0))
    assert outside.code == 4 and "left the expected curve: step 1: mean reward" in outside.err
    assert "mean reward" in outside.out, "its summary is printed all the same"


def test_what_cannot_be_compared_is_refused_before_the_run(fake_run, tmp_path) -> None:
    file = curve(tmp_path / "curve.json", 0.0, 1.0)
    run = fake_run("--reference", file, "--set", "training.batch_size=5")
    assert run.code == 2 and run.dir is None
    assert "training.batch_size is 5, and the reference of fake was recorded with 4" in run.err
    (tmp_path / "curve.json").write_text("[1]")
    run = fake_run("--reference", file)
    assert run.code == 2 and "is not a reference curve" in run.err
    assert "does not exist" in fake_run("--reference", "none.json").err
