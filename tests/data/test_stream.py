"""PromptStream: every prompt once an epoch, shuffled by seed, and resumable at any place, sized dataset or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import attrs
import pytest

from forge_host.api import Prompt, UsageError
from forge_host.builtin.arithmetic import Arithmetic
from forge_host.loop import stream as module
from forge_host.loop.stream import PromptStream


@attrs.frozen
class Plain:
    """A dataset with no length, as a third party may write it."""

    count: int

    def __iter__(self) -> Iterator[Prompt]:
        return (Prompt(id=str(i), text=f"q{i}") for i in range(self.count))

    def fingerprint(self) -> str:
        return f"plain {self.count}"


DATASETS = [Arithmetic(count=30), Plain(30), Plain(3)]


def ids(stream: PromptStream, count: int) -> list[str]:
    return [prompt.id for prompt in islice(stream, count)]


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFER", 8)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("dataset", DATASETS)
def test_each_prompt_once_an_epoch(dataset: Plain, shuffle: bool) -> None:
    stream = PromptStream(dataset, shuffle=shuffle)
    epochs = [ids(stream, dataset.count) for _ in range(3)]
    own = [prompt.id for prompt in dataset]
    for epoch in epochs:
        assert Counter(epoch) == Counter(own)
        assert shuffle or epoch == own
    if shuffle and dataset.count > 3:
        assert epochs[0] != epochs[1] and own not in epochs


@pytest.mark.parametrize("dataset", DATASETS)
def test_order_follows_the_seed(dataset: Plain) -> None:
    count = 2 * dataset.count
    assert ids(PromptStream(dataset, seed=1), count) == ids(PromptStream(dataset, seed=1), count)
    if dataset.count > 3:
        assert ids(PromptStream(dataset, seed=1), count) != ids(PromptStream(dataset, seed=2), count)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("dataset", DATASETS)
def test_resume_anywhere(dataset: Plain, shuffle: bool) -> None:
    total = 2 * dataset.count + 5
    straight = ids(PromptStream(dataset, shuffle=shuffle), total)
    for taken in range(total):
        first = PromptStream(dataset, shuffle=shuffle)
        head = ids(first, taken)
        second = PromptStream(dataset, shuffle=shuffle)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert head + ids(second, total - taken) == straight


def test_resume_with_dropped_prompts() -> None:
    def keep(prompt: Prompt) -> bool:
        return int(prompt.id) % 3 == 0

    first = PromptStream(Plain(10), keep=keep)
    straight = ids(first, 9)
    assert {int(i) % 3 for i in straight} == {0}
    half = PromptStream(Plain(10), keep=keep)
    head = ids(half, 5)
    rest = PromptStream(Plain(10), keep=keep)
    rest.load_state_dict(half.state_dict())
    assert head + ids(rest, 4) == straight and rest.dropped == first.dropped > 0


def test_refuses_other_data_seed_or_order() -> None:
    state = PromptStream(Plain(3), seed=1).state_dict()
    for other, name in ((PromptStream(Plain(4), seed=1), "the data"), (PromptStream(Plain(3), seed=2), "the seed")):
        with pytest.raises(UsageError, match=f"{name} changed since the checkpoint"):
            other.load_state_dict(state)


def test_empty_and_all_dropped() -> None:
    with pytest.raises(UsageError, match="dataset is empty"):
        next(PromptStream(Plain(0)))
    with pytest.raises(UsageError, match="none of the dataset's 3 prompts can be used"):
        next(PromptStream(Plain(3), keep=lambda prompt: False))
