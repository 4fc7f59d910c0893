"""`arithmetic`: generated questions about two whole numbers, with their exact answers.

Why: a task with a right answer that a 135M model can learn in minutes, without any data file.

    dataset = Arithmetic(low=1, high=9, operations=("+",), count=100)
    dataset[0].text, dataset[0].target      # ("What is 2 + 5?", "7")
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Iterator
from typing import Any

import attrs
from attrs.validators import and_, deep_iterable, ge, in_, lt, min_len

from forge_host.api import Prompt, UsageError, field
from forge_host.builtin.split import SPLITS, held_out

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_MAX_DRAWS = 10_000


@attrs.frozen(kw_only=True)
class Arithmetic:
    """`count` questions, the same ones for the same fields. Sized and indexable."""

    low: int = field(default=1, help="smallest operand")
    high: int = field(default=9, help="largest operand")
    operations: tuple[str, ...] = field(
        default=("+",),
        help="operations drawn from: +, - and *",
        converter=tuple,
        validator=and_(min_len(1), deep_iterable(in_(tuple(OPERATIONS)))),
    )
    count: int = field(default=10_000, help="questions in an epoch", validator=ge(1))
    template: str = field(default="What is {a} {op} {b}?", help="the question; {a}, {op} and {b} are filled in")
    seed: int = field(default=0, help="seed of the questions")
    split: str = field(default="train", help="train or test, the held-out questions", validator=in_(SPLITS))
    holdout: float = field(default=0.0, help="fraction of possible questions held out", validator=and_(ge(0), lt(1)))

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise UsageError(f"dataset `arithmetic`: low {self.low} is above high {self.high}")
        try:
            self.template.format(a=1, op="+", b=2)
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"dataset `arithmetic`: template {self.template!r} cannot be filled in ({error!r})",
                fix="use {a}, {op} and {b}, and {{ for a brace",
            ) from error
        if self.split == "test" and self.holdout == 0:
            raise UsageError("dataset `arithmetic`: split test is empty with holdout 0", fix="set holdout, say to 0.1")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Prompt:
        """Question `index`, drawn from a generator of its own, so no other question needs to be drawn first."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        rng = random.Random(f"{self.seed}:{index}")  # a text seed is hashed, the same everywhere and always
        for _ in range(_MAX_DRAWS):
            a, b = rng.randint(self.low, self.high), rng.randint(self.low, self.high)
            op = rng.choice(self.operations)
            if held_out(f"{a}{op}{b}", self.holdout) == (self.split == "test"):
                break
        else:
            raise UsageError(
                f"dataset `arithmetic`: no question of {self.low}..{self.high} falls into split {self.split}",
                fix="change holdout or widen low and high",
            )
        return Prompt(
            id=f"arithmetic-{self.seed}-{index}",
            text=self.template.format(a=a, op=op, b=b),
            target=str(OPERATIONS[op](a, b)),
            metadata={"a": a, "b": b, "op": op},
        )

    def __iter__(self) -> Iterator[Prompt]:
        return (self[index] for index in range(self.count))

    def fingerprint(self) -> str:
        fields: dict[str, Any] = attrs.asdict(self)
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()
