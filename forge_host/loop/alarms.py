"""Says when a reward has stopped telling responses apart.

    constant = ConstantRewards(after=20)
    for sentence in constant(step_metrics): ...          # each reward is named once

Why: a reward that gives every response the same value adds nothing to any advantage. That is a bug in it (a pattern
that never matches, a target that is never read) or a task that is solved or out of reach; neither shows in the mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

PART = re.compile(r"reward/([^/]+)/std\Z")
GATE = re.compile(r"reward/([^/]+)/passed/mean\Z")


@attrs.define
class ConstantRewards:
    """Counts, for each reward, the steps in a row in which all responses got one and the same value.

    Args:
        after: steps until it is said; 0 never says it.
    """

    after: int
    _seen: dict[str, tuple[float, int]] = attrs.Factory(dict)
    _closed: dict[str, int] = attrs.Factory(dict)

    def __call__(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """A sentence for every reward that has been constant, or every gate closed, for exactly `after` steps now."""
        gates = {match.group(1): metrics[key] for key in metrics if (match := GATE.match(key))}
        self._closed = {name: self._closed.get(name, 0) + 1 for name, passed in gates.items() if passed == 0}
        for name, steps in self._closed.items():
            if steps == self.after and self.after:
                yield (
                    f"gate `{name}` was closed for every response of the last {steps} steps, so no other reward was "
                    "asked; check it, or lower its gate"
                )
        if self._closed:
            return  # the others are 0 because nobody asked them
        for key, deviation in metrics.items():
            found = PART.match(key)
            if found is None:
                continue
            name, mean = found.group(1), metrics[f"reward/{found.group(1)}/mean"]
            before, steps = self._seen.get(name, (mean, 0))
            steps = 0 if deviation > 0 else steps + 1 if mean == before else 1
            self._seen[name] = (mean, steps)
            if steps == self.after and self.after:
                yield (
                    f"reward `{name}` was {mean:g} for every response of the last {steps} steps and teaches nothing; "
                    "check it, or the difficulty of the prompts"
                )
