"""The scorer: what a reward may return, what its failures look like, how several become one."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import pytest

from forge_host.api import Completion, Episode, PluginError, Prompt, RewardResult, RunError, UsageError
from forge_host.loop.scoring import Scorer

PROMPT = Prompt(id="p", text="What is 2 + 3?", target="5", metadata={"level": 1})


def score(*rewards: Any, prompt: Prompt = PROMPT, scorer: Scorer | None = None, **options: Any) -> Episode:
    """One episode; rewards are callables, or (callable, weight), named a, b, c, ..."""
    named = [("abc"[i], *(r if isinstance(r, tuple) else (r, 1.0))) for i, r in enumerate(rewards)]
    completion = Completion(text="five", token_ids=[1, 2, 3], logprobs=[0.0, 0.0, 0.0])
    made = scorer or Scorer(named, **options)
    return asyncio.run(made.score(prompt, completion, episode_id="g/0", max_tokens=7))


async def slow_two() -> float:
    await asyncio.sleep(0.001)
    return 2.0


class AsyncReward:
    async def __call__(self, target: str) -> float:
        return float(target)


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        (lambda: 1, 1.0),
        (lambda: True, 1.0),
        (lambda: -0.5, -0.5),
        (lambda: RewardResult(0.25), 0.25),
        (slow_two, 2.0),
        (AsyncReward(), 5.0),
        (lambda: slow_two(), 2.0),
    ],
)
def test_values(reward: Any, value: float) -> None:
    episode = score(reward)
    assert (episode.reward, episode.error, episode.parts) == (value, None, {"a": value})
    assert type(episode.reward) is float


def test_numpy_numbers() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy")
    assert score(lambda: numpy.float32(0.5)).reward == 0.5


def test_a_reward_gets_what_it_names() -> None:
    seen: dict[str, Any] = {}

    def reward(
        prompt: str, response: str, target: str, metadata: Any, length: int, max_tokens: int, **rest: Any
    ) -> float:
        seen.update(locals(), **rest)
        return 0.0

    score(reward)
    assert (seen["prompt"], seen["response"], seen["target"]) == ("What is 2 + 3?", "five", "5")
    assert (seen["metadata"], seen["length"], seen["max_tokens"]) == ({"level": 1}, 3, 7)
    assert seen["messages"] == ({"role": "user", "content": "What is 2 + 3?"},) and seen["finish_reason"] == "stop"


def test_prompt_of_a_chat_is_its_last_user_message() -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]})
    chat = Prompt(id="c", messages=(*messages, {"role": "assistant", "content": "a"}))
    assert score(lambda prompt: len(prompt), prompt=chat).reward == 2.0


def raises() -> float:
    raise ValueError("no\ngood")


def leaves() -> float:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (raises, r"reward `a` raised ValueError: no good \(test_scoring\.py:\d+\)"),
        (leaves, "reward `a` raised RuntimeError: SystemExit 3"),
        (lambda: next(iter(())), "StopIteration"),
        (lambda: "good", "reward `a`: it returned str 'good', not a number"),
        (lambda: [1.0], r"it returned list \[1\.0\]"),
        (lambda: float("nan"), "its value is nan, not a finite number"),
        (lambda: RewardResult(1.0, {"part": float("inf")}), "part is inf"),
        (lambda: RewardResult("1"), "its value is str '1'"),  # type: ignore[arg-type]
    ],
)
def test_failures_are_errors_and_never_zero(reward: Any, message: str) -> None:
    episode = score(reward, lambda: 1.0)
    assert episode.reward is None and episode.error is not None
    assert re.search(message, episode.error), episode.error
    assert episode.parts == {"b": 1.0}


def test_a_rewards_own_timeout_error_is_not_our_deadline() -> None:
    def reward() -> float:
        raise TimeoutError("judge too slow")

    assert "reward `a` raised TimeoutError: judge too slow" in str(score(reward, timeout_s=5.0).error)


def test_a_hang_ends_at_the_deadline_and_wedges() -> None:
    release = threading.Event()
    scorer = Scorer([("a", lambda: release.wait(), 1.0)], timeout_s=0.1)
    start = time.monotonic()
    episode = score(scorer=scorer)
    assert time.monotonic() - start < 5
    assert episode.error == "reward `a` timed out after 0.1 s" and episode.reward is None and scorer.wedged
    release.set()


def test_an_async_hang_is_cancelled_and_does_not_wedge() -> None:
    cancelled = []

    async def reward() -> float:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return 0.0

    scorer = Scorer([("a", reward, 1.0)], timeout_s=0.1)
    assert score(scorer=scorer).error == "reward `a` timed out after 0.1 s"
    assert cancelled and not scorer.wedged


def test_rewards_run_at_once_and_off_the_main_thread() -> None:
    barrier = threading.Barrier(2, timeout=10)

    def reward() -> float:
        barrier.wait()
        return float(threading.current_thread() is not threading.main_thread())

    assert score(reward, reward).reward == 1.0


@pytest.mark.parametrize(
    ("mode", "weights", "value"),
    [("mean", (1.0, 1.0), 0.75), ("mean", (3.0, 1.0), 0.875), ("sum", (1.0, 1.0), 1.5), ("sum", (1.0, -1.0), 0.5)],
)
def test_composition(mode: str, weights: tuple[float, float], value: float) -> None:
    episode = score((lambda: 1.0, weights[0]), (lambda: 0.5, weights[1]), mode=mode)
    assert episode.reward == value and episode.parts == {"a": 1.0, "b": 0.5}


def test_shaping_is_added_after_the_mean() -> None:
    episode = score(lambda: 1.0, lambda: 0.0, shaping=[("long", lambda length, max_tokens: -length / max_tokens)])
    assert episode.reward == pytest.approx(0.5 - 3 / 7)
    assert episode.parts["long"] == pytest.approx(-3 / 7)


def test_abstaining() -> None:
    assert score(lambda: None, lambda: 0.5).reward == 0.5
    both = score(lambda: None, lambda: None)
    assert (both.reward, both.error, both.parts) == (None, None, {})
    assert score(lambda: None, (lambda: 1.0, 0.0)).reward is None  # nothing with a weight graded it


def test_parts_and_notes_carry_the_rewards_name() -> None:
    episode = score(lambda: RewardResult(1.0, {"found": 1}, "tag: 5"), lambda: RewardResult(0.0, note="no"))
    assert episode.parts == {"a": 1.0, "a/found": 1.0, "b": 0.0}
    assert episode.note == "a: tag: 5; b: no"


def test_bad_setups() -> None:
    with pytest.raises(PluginError, match=r"reward `a`.*`respones`, which does not exist"):
        score(lambda respones: 1.0)
    with pytest.raises(UsageError, match="no rewards"):
        Scorer([])
    with pytest.raises(UsageError, match="do not add up"):
        score((lambda: 1.0, 0.0))
    with pytest.raises(UsageError, match="reward mode 'max'"):
        score(lambda: 1.0, mode="max")


def test_user_errors_are_shown_as_they_are() -> None:
    def reward() -> float:
        raise RunError("the judge is away", fix="start it")

    assert score(reward).error == "reward `a`: the judge is away; start it"
