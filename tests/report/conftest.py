"""`make_run`: run directories as a run leaves them, of any length and in any state of damage."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from made_runs import CONFIG, episode, healthy


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(
        name: str = "made-20260101-101010",
        steps: int = 20,
        metrics: Callable[[int, int], dict[str, float]] = healthy,
        episodes: int = 8,
        status: str | None = "done",
        config: str = CONFIG,
        **summary: object,
    ) -> Path:
        folder = tmp_path / name
        (folder / "rollouts").mkdir(parents=True)
        (folder / "config.resolved.yaml").write_text(config)
        plugin = {"name": "math", "version": "0.1.0", "distribution": "forge-plugin-math", "sha256": "ab" * 32}
        (folder / "plugins.lock").write_text(json.dumps({"host": "0.1.0", "plugins": [plugin]}))
        with (folder / "metrics.jsonl").open("w") as out:
            for step in range(1, steps + 1):
                values = {k: v if math.isfinite(v) else None for k, v in metrics(step, steps).items()}
                row = {"step": step, "policy_version": step, "time": 1e9 + step, "metrics": values}
                out.write(json.dumps(row) + "\n")
        with (folder / "rollouts" / "rollouts.jsonl").open("w") as out:
            for step in range(1, steps + 1):
                for number in range(episodes):
                    out.write(json.dumps(episode(step, number)) + "\n")
        if status is not None:
            values = {"run": name, "status": status, "error": None, "steps": steps, **summary}
            (folder / "summary.json").write_text(json.dumps(values))
        return folder

    return make
