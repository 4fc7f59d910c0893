"""`curriculum`: prompts that the policy always or never solves are given less often; those in between teach the most.

    dataset:
      path: curriculum
      of: gsm8k.jsonl               # or {use: arithmetic, high: 99}
      revisit: 0.1

A group in which every response got the same reward has no advantage to learn from. So a prompt's pass rate is noted
when its group is scored, and when its turn comes again it is passed over, but for a share `revisit`, while the rate is
at or beyond `low` or `high`. Prompts not tried yet are always given. The rates are saved in checkpoints.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs.validators import and_, ge, gt, le

from forge_host.api import Group, Prompt, UsageError, Use, field
from forge_host.builtin.mix import data_use

_SHARE = and_(ge(0), le(1))


@attrs.define(kw_only=True)
class Curriculum:
    """Sized and indexable, as the dataset it is made of must be."""

    of: Use = field(help="dataset component with its keys, or a data file")
    low: float = field(default=0.0, help="pass rate at or below which a prompt is too hard", validator=_SHARE)
    high: float = field(default=1.0, help="pass rate at or above which it is too easy", validator=_SHARE)
    revisit: float = field(
        default=0.1, help="share of too hard and too easy prompts that are given all the same", validator=_SHARE
    )
    memory: float = field(
        default=0.5, help="weight of the newest group in a prompt's pass rate", validator=and_(gt(0), le(1))
    )
    solved_at: float = field(default=1.0, help="a reward of at least this is a pass")
    prior_field: str | None = field(
        default=None, help="field of the dataset with a pass rate from elsewhere, used until there is one from here"
    )
    _dataset: Any = attrs.field(init=False, default=None)
    _rates: dict[str, float] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.low >= self.high:
            raise UsageError(f"dataset `curriculum`: low {self.low:g} is not below high {self.high:g}")

    def forge_compose(self, host: Any) -> None:
        """Build the dataset with the host that built this.

        Raises:
            UsageError: it has no length.
        """
        use = data_use(self.of)
        self._dataset = host.build("dataset", use)
        if not (hasattr(self._dataset, "__len__") and hasattr(self._dataset, "__getitem__")):
            raise UsageError(
                f"dataset `{use.ref}` of `curriculum` is streamed and has no length", fix="set streaming: false in it"
            )
        if self.prior_field is not None:
            self.pass_rate(self._dataset[0])  # a field that is not there is said before the run

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Prompt:
        prompt: Prompt = self._dataset[index]
        return prompt

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._dataset)

    def fingerprint(self) -> str:
        """Hash of the dataset's fingerprint and of the settings."""
        settings = (self.low, self.high, self.revisit, self.memory, self.solved_at, self.prior_field)
        return hashlib.sha256(repr((self._dataset.fingerprint(), settings)).encode()).hexdigest()

    def pass_rate(self, prompt: Prompt) -> float | None:
        """As far as it is known; None for a prompt that was not tried."""
        if prompt.id in self._rates or self.prior_field is None:
            return self._rates.get(prompt.id)
        prior = prompt.metadata.get(self.prior_field)
        if not isinstance(prior, (int, float)):
            raise UsageError(
                f"prompt {prompt.id} has no number in field `{self.prior_field}`; it has "
                f"{', '.join(f'`{name}`' for name in prompt.metadata) or 'no other fields'}",
                fix="change dataset.prior_field",
            )
        return float(prior)

    def wants(self, prompt: Prompt, draw: float) -> bool:
        """Whether the prompt is given now; `draw` is uniform in [0, 1)."""
        rate = self.pass_rate(prompt)
        return rate is None or self.low < rate < self.high or draw < self.revisit

    def observe(self, group: Group) -> None:
        """Note how a prompt's responses did."""
        if not group.rewards:
            return
        passed = statistics.fmean(reward >= self.solved_at for reward in group.rewards)
        before = self._rates.get(group.prompt.id)
        self._rates[group.prompt.id] = passed if before is None else before + self.memory * (passed - before)

    def state_dict(self) -> dict[str, Any]:
        """The pass rates, for a checkpoint."""
        return {"rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates = dict(state["rates"])

    def metrics(self) -> dict[str, float]:
        """Prompts tried, their mean pass rate, and the share that is in between."""
        rates = list(self._rates.values())
        if not rates:
            return {"curriculum/tried": 0.0}
        between = statistics.fmean(self.low < rate < self.high for rate in rates)
        return {
            "curriculum/tried": float(len(rates)),
            "curriculum/pass_rate": statistics.fmean(rates),
            "curriculum/between_share": between,
        }
