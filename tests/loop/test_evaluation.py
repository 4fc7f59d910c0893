"""pass@k against enumeration, and what an evaluation reports."""

import itertools
import math

import pytest

from forge_host.loop.evaluation import pass_at_k, powers_of_two, summarise
from forge_host.types import Completion, Episode, Group, Prompt


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 4), (4, 0, 2), (4, 4, 4), (7, 3, 5)])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(n: int, c: int, k: int) -> None:
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="pass@3 needs 3 samples, there are 2"):
        pass_at_k(2, 1, 3)


def test_powers() -> None:
    assert powers_of_two(1) == [1] and powers_of_two(6) == [1, 2, 4, 6] and powers_of_two(8) == [1, 2, 4, 8]


def group(name: str, category: str, *rewards: float | None) -> Group:
    prompt = Prompt(id=name, text="?", metadata={"category": category})
    completion = Completion(text="x", token_ids=[1, 2], logprobs=[0.0, 0.0])
    episodes = tuple(Episode(id=str(i), prompt=prompt, completion=completion, reward=r) for i, r in enumerate(rewards))
    return Group(id=name, prompt=prompt, episodes=episodes)


def test_summary() -> None:
    groups = [group("a", "easy", 1.0, 1.0), group("b", "hard", 0.0, 1.0), group("c", "hard", 0.0, None)]
    out = summarise(groups, "eval", 1.0, [1, 2])
    means = [1.0, 0.5, 0.0]
    assert out["eval/mean"] == pytest.approx(0.5)
    assert out["eval/ci95"] == pytest.approx(1.96 * 0.5 / math.sqrt(3), rel=1e-3) and len(means) == 3
    assert out["eval/error_rate"] == pytest.approx(1 / 6)
    assert out["eval/pass@1"] == pytest.approx(0.5) and out["eval/pass@2"] == pytest.approx(1.0)
    assert out["eval/category/easy/mean"] == 1.0 and out["eval/category/hard/mean"] == 0.25
