"""What a shipped recipe is expected to do: a band around its reward (or loss), and the check that a run stays in it.

    reference = find_reference(run)          # None when no reference was recorded with these settings
    problems = reference.check(run)          # [] when inside

A reference is `reference/NAME.json` in this package: `recipe`, `settings` (dotted keys that must be equal for the curve
to apply), `metric`, `window` (steps averaged before comparing), `steps`, `low`, `high`, a bound on the end, and `runs`,
a sentence on what it was made of. Torch-free.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import yaml

from forge_host.errors import RunError, UsageError
from forge_host.plugins.suggest import listing
from forge_host.report.rundata import Run, load_run

#: What messages and charts call a metric.
NAMES = {"reward/mean": "mean reward", "train/loss": "training loss"}


@attrs.frozen(kw_only=True)
class Reference:
    """A band of one metric.

    Args:
        metric: "reward/mean", or "train/loss" of supervised training.
        steps, low, high: the band of the metric averaged over `window` steps ending at each step.
        final_at_least, final_at_most: bounds on the mean of the last five steps.
    """

    recipe: str
    settings: Mapping[str, Any]
    window: int
    steps: list[int]
    low: list[float]
    high: list[float]
    runs: str
    metric: str = "reward/mean"
    final_at_least: float | None = None
    final_at_most: float | None = None

    @property
    def what(self) -> str:
        """The metric in words."""
        return NAMES.get(self.metric, self.metric)

    @property
    def centres(self) -> list[float]:
        """The middle of each step's window, where the band is drawn."""
        return [step - (min(step, self.window) - 1) / 2 for step in self.steps]

    def applies(self, run: Run) -> str | None:
        """None, or the sentence that says which setting differs."""
        for key, value in self.settings.items():
            if run.setting(key) != value:
                return f"{key} is {run.setting(key)!r}, and the reference of {self.recipe} was recorded with {value!r}"
        return None

    def check(self, run: Run) -> list[str]:
        """Where the run is outside, one sentence each; [] when it is inside."""
        values = dict(zip(*run.series(self.metric), strict=True))
        missing = [step for step in self.steps if step not in values]
        if missing:
            return [f"the run has no {self.metric} at step {missing[0]}; the reference has {self.steps[-1]} steps"]
        problems = []
        for step, low, high in zip(self.steps, self.low, self.high, strict=True):
            mean = statistics.fmean(values[s] for s in range(max(1, step - self.window + 1), step + 1) if s in values)
            if not low <= mean <= high:
                problems.append(f"step {step}: {self.what} {mean:.3f} is outside {low:.3f} to {high:.3f}")
        final = statistics.fmean([values[s] for s in sorted(values)][-5:])
        for bound, wrong, side in ((self.final_at_least, -1, "below"), (self.final_at_most, 1, "above")):
            if bound is not None and (final - bound) * wrong > 0:
                problems.append(f"{self.what} of the last five steps is {final:.3f}, {side} {bound:.3f}")
        return problems


def reference_names() -> list[str]:
    """Recipes that have a reference, sorted."""
    folder = files("forge_host.report") / "reference"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def load_reference(recipe: str) -> Reference:
    """The expected curve of a recipe, or of a .json file that `reference_make` wrote.

    Raises:
        UsageError: there is none, or the file does not hold one.
    """
    if recipe.endswith(".json"):
        source: Any = Path(recipe).expanduser()
        if not source.is_file():
            raise UsageError(f"{recipe} does not exist", where="--reference")
    elif recipe in reference_names():
        source = files("forge_host.report") / "reference" / f"{recipe}.json"
    else:
        raise UsageError(
            f"there is no reference curve for {recipe!r}", where="--check",
            fix=f"recipes that have one: {listing(reference_names())}; --reference FILE.json takes your own",
        )  # fmt: skip
    try:
        return Reference(**json.loads(source.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{recipe} is not a reference curve ({error})", where="--reference",
            fix="make it with python -m forge_host.report.reference_make",
        ) from None  # fmt: skip


def check_settings(config: str, reference: Reference) -> None:
    """Whether a run of this configuration (YAML) could be compared; before it costs anything.

    Raises:
        UsageError: a setting differs, with its key.
    """
    run = Run(path=Path(), config=yaml.safe_load(config), rows=[], summary={}, lock={}, notes=[])
    differs = reference.applies(run)
    if differs is not None:
        raise UsageError(f"nothing to compare with: {differs}", where="--check", fix="run the recipe as it is")


def check_run(path: str | Path, reference: Reference) -> str:
    """The sentence that a run is inside its reference.

    Raises:
        RunError: it is outside, or it had other settings than those the reference was recorded with.
    """
    run = load_run(path)
    differs = reference.applies(run)
    if differs is not None:
        raise RunError(f"nothing to compare with: {differs}", where="--check", fix="run the recipe as it is")
    problems = reference.check(run)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RunError(f"{run.name} left the expected curve: {problems[0]}{more}", where="--check")
    return f"check: inside the expected curve of {reference.recipe} ({reference.runs})"


def find_reference(run: Run) -> Reference | None:
    """The reference recorded with this run's settings, if there is one."""
    for name in reference_names():
        reference = load_reference(name)
        if reference.applies(run) is None:
            return reference
    return None
