"""Makes a recipe's reference curve from runs of it with different seeds; for maintainers, after a recipe changes.

    python -m forge_host.report.reference_make quickstart RUN RUN RUN > forge_host/report/reference/quickstart.json

The band is the lowest and highest windowed reward (or, of supervised training, loss) of the runs at each step, widened
by TOLERANCE: few runs do not show all that seeds and machines do.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from forge_host.errors import UsageError
from forge_host.report.rundata import Run, load_run

WINDOW = 4  # steps
#: How far the band reaches beyond the runs it was made of, and whether the metric should rise.
TOLERANCE = {"reward/mean": 0.15, "train/loss": 0.25}
RISES = {"reward/mean": True, "train/loss": False}
#: Settings that shape the curve; those that only make it faster, or say where things are, do not.
KEYS = (
    "name", "model", "algorithm", "dataset.path", "dataset.system", "dataset.low", "dataset.high",
    "dataset.operations", "rewards.0.use", "rewards.1.use", "training.batch_size", "training.max_steps",
    "training.learning_rate", "training.lr_schedule", "training.warmup_steps", "training.seq_len",
    "training.sync_interval", "training.max_policy_age",
)  # fmt: skip
OF_THE_ALGORITHM = ("n_samples", "max_tokens", "beta", "aggregation", "correction")


def make_reference(recipe: str, runs: Sequence[Run]) -> dict[str, Any]:
    """What `reference/NAME.json` holds.

    Raises:
        UsageError: fewer than two runs, or runs of different settings or lengths.
    """
    if len(runs) < 2:
        raise UsageError("a reference is made of two runs or more, with different seeds")
    keys = [*KEYS, *(runs[0].algorithm_key(name) for name in OF_THE_ALGORITHM)]
    settings = {key: runs[0].setting(key) for key in keys}
    metric = "reward/mean" if runs[0].series("reward/mean")[1] else "train/loss"
    curves = []
    for run in runs:
        for key, value in settings.items():
            if run.setting(key) != value:
                raise UsageError(f"{key} is {run.setting(key)!r}, and {value!r} in {runs[0].name}", where=run.name)
        steps, values = run.series(metric)
        if steps != list(range(1, len(runs[0].rows) + 1)):
            raise UsageError(f"it has steps {steps[:1]} to {steps[-1:]}, not those of {runs[0].name}", where=run.name)
        curves.append([statistics.fmean(values[max(0, i - WINDOW + 1) : i + 1]) for i in range(len(values))])
    finals = [statistics.fmean(run.series(metric)[1][-5:]) for run in runs]
    extra = TOLERANCE[metric]
    low, high = round(min(finals) - extra, 3), round(max(finals) + extra, 3)
    bound = {"final_at_least": low} if RISES[metric] else {"final_at_most": high}
    seeds = ", ".join(str(run.setting("training.seed")) for run in runs)
    return {
        "recipe": recipe,
        "settings": settings,
        "metric": metric,
        "window": WINDOW,
        "steps": list(range(1, len(curves[0]) + 1)),
        "low": [round(min(column) - extra, 3) for column in zip(*curves, strict=True)],
        "high": [round(max(column) + extra, 3) for column in zip(*curves, strict=True)],
        **bound,
        "runs": f"{len(runs)} runs, seeds {seeds}, torch {runs[0].lock.get('torch')}, within {extra}",
    }


if __name__ == "__main__":
    print(json.dumps(make_reference(sys.argv[1], [load_run(path) for path in sys.argv[2:]]), indent=1))
