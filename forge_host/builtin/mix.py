"""`mix`: several datasets as one, in given shares.

    dataset:
      path: mix
      parts: [gsm8k.jsonl, {use: arithmetic, high: 99}]
      weights: [3, 1]                    # three questions of the file to each sum

Deterministic and indexable: the host shuffles it, saves its position and resumes it like any single dataset. A prompt's
category is its own, else its part's name, so that evaluation tells the parts apart.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import deep_iterable, gt, min_len, optional

from forge_host.api import Prompt, UsageError, Use, field
from forge_host.config.paths import data_reader


@attrs.define(kw_only=True)
class Mix:
    """Sized and indexable, as its parts must be. An epoch ends where a part would repeat, unless `count` is set."""

    parts: tuple[Use, ...] = field(
        help="dataset components with their keys, or data files", converter=tuple, validator=min_len(2)
    )
    weights: tuple[float, ...] = field(
        default=(), help="share of each part; empty gives equal ones", converter=tuple,
        validator=deep_iterable(gt(0)),
    )  # fmt: skip
    count: int | None = field(
        default=None, help="prompts of an epoch; more than there are repeat", validator=optional(gt(0))
    )
    _datasets: list[Any] = attrs.field(init=False, factory=list)
    _names: tuple[str, ...] = attrs.field(init=False, default=())
    _part: array[int] = attrs.field(init=False, factory=lambda: array("H"))
    _index: array[int] = attrs.field(init=False, factory=lambda: array("Q"))

    def __attrs_post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.parts):
            raise UsageError(f"dataset `mix` has {len(self.parts)} parts and {len(self.weights)} weights")

    def forge_compose(self, host: Any) -> None:
        """Build the parts with the host that built this.

        Raises:
            UsageError: a part has no length.
        """
        uses = [data_use(part) for part in self.parts]
        self._datasets = [host.build("dataset", use) for use in uses]
        for use, dataset in zip(uses, self._datasets, strict=True):
            if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
                raise UsageError(
                    f"part `{use.ref}` of dataset `mix` is streamed and has no length", fix="set streaming: false in it"
                )
        refs = tuple(part.ref for part in self.parts)
        short = tuple(Path(ref).name if data_reader(ref) else ref for ref in refs)
        self._names = short if len({*short}) == len({*refs}) else refs
        weights = self.weights or (1.0,) * len(self.parts)
        self._part, self._index = schedule([len(d) for d in self._datasets], weights, self.count)

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part, place = self._part[index], self._index[index]
        prompt: Prompt = self._datasets[part][place]
        metadata = {"category": self._names[part], **prompt.metadata}
        return attrs.evolve(prompt, id=f"{part}:{prompt.id}", metadata=metadata)

    def __iter__(self) -> Iterator[Prompt]:
        return (self[index] for index in range(len(self)))

    def fingerprint(self) -> str:
        """Hash of the parts' fingerprints and of how they are mixed."""
        content = ([dataset.fingerprint() for dataset in self._datasets], self.weights, self.count)
        return hashlib.sha256(repr(content).encode()).hexdigest()


def schedule(sizes: Sequence[int], weights: Sequence[float], count: int | None) -> tuple[array[int], array[int]]:
    """For each prompt of an epoch its part and its place there; every prefix has the shares as nearly as it can."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    length = count or max(1, int(min(size / share for size, share in zip(sizes, shares, strict=True)) + 1e-9))
    taken = [0] * len(sizes)
    parts, places = array("H"), array("Q")
    for step in range(1, length + 1):
        part = max(range(len(sizes)), key=lambda p: (shares[p] * step - taken[p], -p))
        parts.append(part)
        places.append(taken[part] % sizes[part])
        taken[part] += 1
    return parts, places


def data_use(part: Use) -> Use:
    """A component, or the one that reads a data file."""
    name = data_reader(part.ref)
    return part if name is None else Use(name, {"path": part.ref, **part.config})
