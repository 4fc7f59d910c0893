"""`curriculum`: what is always or never solved comes less often; what was learned survives a resume."""

import pytest

from forge_host.api import Completion, Episode, Group, Prompt, UsageError
from forge_host.loop.stream import PromptStream
from forge_host.testing import load_component


def made(count: int = 40, **settings):
    return load_component(
        "dataset", "curriculum", {"of": {"use": "arithmetic", "count": count}, "revisit": 0.0, **settings}
    )


def scored(prompt: Prompt, *rewards: float | None) -> Group:
    reply = Completion(text="", token_ids=[1], logprobs=[0.0])
    episodes = [Episode(id=str(i), prompt=prompt, completion=reply, reward=r) for i, r in enumerate(rewards)]
    return Group(id="g", prompt=prompt, episodes=tuple(episodes))


def epoch_of(stream: PromptStream, epoch: int) -> list[str]:
    ids = []
    while True:
        prompt = next(stream)
        if stream.epoch != epoch:
            return ids
        ids.append(prompt.id)


def teach(stream: PromptStream, dataset) -> None:
    """Ten are always solved, ten never, the others half the time."""
    for index, prompt in enumerate(dataset):
        rewards = {0: (1.0, 1.0), 1: (0.0, 0.0)}.get(index // 10, (0.0, 1.0))
        stream.observe(scored(prompt, *rewards))


def test_new_prompts_are_all_given_and_extreme_ones_passed_over() -> None:
    dataset = made()
    stream = PromptStream(dataset, seed=1)
    assert len(epoch_of(stream, 0)) == 40
    teach(stream, dataset)
    given = epoch_of(stream, stream.epoch)
    assert {int(i.rpartition("-")[2]) for i in given} <= set(range(20, 40)) and len(given) >= 19
    metrics = stream.metrics()
    assert metrics["curriculum/tried"] == 40 and metrics["curriculum/between_share"] == 0.5
    assert metrics["data/skipped"] >= 19


def test_some_are_given_all_the_same() -> None:
    dataset = made(400, revisit=0.25)
    stream = PromptStream(dataset, seed=1)
    for prompt in dataset:
        stream.observe(scored(prompt, 1.0, 1.0))
    assert 70 < len(epoch_of(stream, 0)) < 130


def test_with_nothing_in_between_everything_comes_again() -> None:
    dataset = made(5)
    stream = PromptStream(dataset, seed=1)
    for prompt in dataset:
        stream.observe(scored(prompt, 0.0, 0.0))
    assert len({next(stream).id for _ in range(5)}) == 5


def test_resumed_it_gives_the_same_prompts() -> None:
    first = PromptStream(made(), seed=3)
    teach(first, first.dataset)
    [next(first) for _ in range(7)]
    state = first.state_dict()
    second = PromptStream(made(), seed=3)
    second.load_state_dict(state)
    assert [next(first).id for _ in range(60)] == [next(second).id for _ in range(60)]
    assert first.metrics() == second.metrics()


def test_rates_move_and_ungraded_groups_do_not_count() -> None:
    dataset = made()
    prompt = dataset[0]
    dataset.observe(scored(prompt, None, None))
    assert dataset.pass_rate(prompt) is None
    dataset.observe(scored(prompt, 1.0, 1.0))
    dataset.observe(scored(prompt, 0.0, 0.0))
    assert dataset.pass_rate(prompt) == 0.5


def test_prior_from_the_data(tmp_path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "rate": 1.0}\n{"prompt": "b", "rate": 0.5}\n')
    settings = {"of": str(file), "prior_field": "rate", "revisit": 0.0}
    stream = PromptStream(load_component("dataset", "curriculum", settings))
    assert epoch_of(stream, 0) == ["p.jsonl:2"]
    with pytest.raises(UsageError, match="no number in field `gone`"):
        next(PromptStream(load_component("dataset", "curriculum", {**settings, "prior_field": "gone"})))


def test_refusals() -> None:
    with pytest.raises(UsageError, match="low 1 is not below high 1"):
        made(low=1.0)
