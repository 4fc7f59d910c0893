"""`PromptStream`: a dataset over and over, shuffled anew each epoch, at a position that can be saved.

Why: the loop wants prompts for ever, and a resumed run must get exactly those that were left. A dataset only lists its
prompts in a stable order; everything else is here, once, for built-in and third-party datasets alike.

    stream = PromptStream(dataset, seed=0)
    batch = [next(stream) for _ in range(8)]
    state = stream.state_dict()                    # plain data: {"epoch": 0, "position": 8, ...}
    PromptStream(dataset, seed=0).load_state_dict(state)
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from forge_host.api import Dataset, Group, Prompt, UsageError, Use

BUFFER = 1024  # prompts that a dataset without length is shuffled through


class PromptStream(Iterator[Prompt]):
    """An endless iterator of prompts.

    A dataset with `__len__` and `__getitem__` is shuffled whole, through its indices (4 bytes a prompt), and a position
    is reached at once. Any other is shuffled through a buffer of 1,024 prompts, and a position by reading up to it.

    Args:
        dataset: where the prompts come from.
        seed: decides the order; epoch e of seed s is the same in every run.
        shuffle: False gives the dataset's own order.
        keep: prompts for which it is False are passed over and counted in `dropped` (say, too long ones).
    """

    def __init__(
        self, dataset: Dataset, *, seed: int = 0, shuffle: bool = True, keep: Callable[[Prompt], bool] | None = None
    ) -> None:
        self.dataset, self.seed, self.shuffle, self.keep = dataset, seed, shuffle, keep
        self.epoch = 0
        self.position = 0  # prompts of this epoch already taken from the dataset, dropped ones included
        self.dropped = self.skipped = 0  # left out by `keep`; passed over by the dataset's own `wants`
        self._given = 0  # prompts of this epoch that were kept
        self._unwanted, self._all = 0, False
        self._source: Iterator[Prompt] | None = None

    def __next__(self) -> Prompt:
        while True:
            if self._source is None:
                self._source = self._order(self.epoch, self.position)
            for prompt in self._source:
                self.position += 1
                if self.keep is not None and not self.keep(prompt):
                    self.dropped += 1
                elif not self._wanted(prompt):
                    self.skipped += 1
                    self._unwanted += 1
                else:
                    self._given += 1
                    return prompt
            if self.position == 0:
                raise UsageError("dataset is empty")
            if self._given == 0 and self._unwanted == 0:
                raise UsageError(
                    f"none of the dataset's {self.position} prompts can be used, each was left out",
                    fix="check dataset.max_prompt_tokens and training.seq_len",
                )
            self._all = self._given == 0  # nothing was wanted: the next epoch gives everything
            self.epoch, self.position, self._given, self._unwanted, self._source = self.epoch + 1, 0, 0, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain data."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "given": self._given,
            "dropped": self.dropped,
            "skipped": [self.skipped, self._unwanted, self._all],
            "learned": self.dataset.state_dict() if hasattr(self.dataset, "state_dict") else None,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "fingerprint": self.dataset.fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Goes on where `state` was taken; with `other_data` the data may be other, whose prompts from there on follow.

        Raises:
            UsageError: data, seed or shuffle differ from then.
        """
        here = self.state_dict()
        for key, name in (("fingerprint", "the data"), ("seed", "the seed"), ("shuffle", "shuffle")):
            if state[key] != here[key] and not (other_data and key == "fingerprint"):
                raise UsageError(
                    f"dataset: {name} changed since the checkpoint ({state[key]} then, {here[key]} now)",
                    fix="resume with the data and settings that the run was started with"
                    + (", or allow it: --allow dataset" if key == "fingerprint" else ""),
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._given, self.dropped, self._source = int(state["given"]), int(state["dropped"]), None
        self.skipped, self._unwanted, self._all = state.get("skipped", (0, 0, False))
        if state.get("learned") is not None:
            learner: Any = self.dataset
            learner.load_state_dict(state["learned"])

    def observe(self, group: Group) -> None:
        """Tell the dataset how a group did, if it wants to know."""
        if hasattr(self.dataset, "observe"):
            self.dataset.observe(group)

    def metrics(self) -> dict[str, float]:
        """Epoch, prompts left out as too long and passed over so far, and the dataset's own."""
        own = self.dataset.metrics() if hasattr(self.dataset, "metrics") else {}
        counts = {"data/epoch": self.epoch, "data/left_out": self.dropped, "data/skipped": self.skipped}
        return {**{name: float(value) for name, value in counts.items()}, **own}

    def _wanted(self, prompt: Prompt) -> bool:
        if self._all or not hasattr(self.dataset, "wants"):
            return True
        draw = random.Random(f"{self.seed}:{self.epoch}:{self.position}").random()  # no state of its own to save
        return bool(self.dataset.wants(prompt, draw))

    def _order(self, epoch: int, skip: int) -> Iterator[Prompt]:
        """The epoch's prompts from position `skip` on."""
        rng = random.Random(f"{self.seed}:{epoch}")
        sized: Any = self.dataset
        if hasattr(sized, "__len__") and hasattr(sized, "__getitem__"):
            order = array("I", range(len(sized)))
            if self.shuffle:
                rng.shuffle(order)
            return (sized[index] for index in order[skip:])
        prompts = _buffered(self.dataset, rng) if self.shuffle else iter(self.dataset)
        for _ in range(skip):
            next(prompts, None)
        return prompts


def open_stream(
    host: Any, use: Use, seed: int, saved: Mapping[str, Any] | None = None, other_data: bool = False
) -> PromptStream:
    """The prompts of the dataset `use`, from where `saved` was taken.

    Raises:
        UsageError: the dataset cannot be read; or as `load_state_dict`.
    """
    stream = PromptStream(host.build("dataset", use), seed=seed)
    if saved is not None:
        stream.load_state_dict(saved, other_data)
    return stream


def _buffered(prompts: Iterable[Prompt], rng: random.Random) -> Iterator[Prompt]:
    """Each prompt once, in an order drawn from the last BUFFER ones read."""
    buffer: list[Prompt] = []
    for prompt in prompts:
        if len(buffer) < BUFFER:
            buffer.append(prompt)
            continue
        index = rng.randrange(BUFFER)
        yield buffer[index]
        buffer[index] = prompt
    rng.shuffle(buffer)
    yield from buffer
