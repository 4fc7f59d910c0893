"""RewardContract catches what it says it catches: each bad reward here fails exactly the test made for it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from forge_host.api import RewardResult
from forge_host.errors import PluginError
from forge_host.testing.reward import Graded, RewardContract


def contract(reward: Callable[..., Any] | type, **attributes: Any) -> tuple[RewardContract, Graded]:
    """A contract on `reward` (a class is instantiated anew each time), and what its fixture gives."""

    class Contract(RewardContract):
        def make(self) -> Any:
            return reward() if isinstance(reward, type) else reward

    made = Contract()
    for name, value in {"reward": "bad", **attributes}.items():
        setattr(made, name, value)
    return made, Graded(made.make(), made.prompt)


def good(response: str, target: str | None) -> float | None:
    """Right if the reply's last word is the target."""
    words = response.split()
    return None if target is None else float(bool(words) and words[-1].strip(".") == target)


EXAMPLES: dict[str, Any] = {"accept": [("it is 19", "19")], "reject": [("it is 18", "19")]}


def test_a_good_reward_passes_all() -> None:
    made, graded = contract(good, **EXAMPLES)
    made.test_asks_for_what_exists()
    made.test_grades_any_reply(graded, "\ud800")
    made.test_failure_is_not_a_score()
    made.test_deterministic(graded)
    made.test_order_does_not_matter(graded)
    made.test_same_off_the_main_thread(graded)
    made.test_accepts(graded)
    made.test_rejects(graded)
    for probe in ("echo", "numbers", "tags", "target words"):
        made.test_knowing_nothing_does_not_pay(graded, probe)
    made.test_time_grows_in_proportion(graded, "<")


def test_unknown_argument() -> None:
    with pytest.raises(PluginError, match="`answer`"):
        contract(lambda answer: 1.0)


def test_looks_at_nothing() -> None:
    with pytest.raises(AssertionError, match="every reply scores the same"):
        contract(lambda target: 1.0)[0].test_asks_for_what_exists()


@pytest.mark.parametrize("value", ["text", float("nan"), [1.0]])
def test_returns_nonsense(value: Any) -> None:
    made, graded = contract(lambda response: value)
    with pytest.raises(Exception, match="not a"):
        made.test_grades_any_reply(graded, "5")


def test_raises_on_odd_replies() -> None:
    made, graded = contract(lambda response: float(response))
    with pytest.raises(ValueError):
        made.test_grades_any_reply(graded, "")


def swallows(response: str) -> float:
    try:
        return float(response)
    except Exception:
        return 0.0


def test_swallows_exceptions() -> None:
    with pytest.raises(AssertionError, match="let the exception out"):
        contract(swallows)[0].test_failure_is_not_a_score()


class Counts:
    """Grades by how often it was called."""

    calls = 0

    def __call__(self, response: str) -> float:
        self.calls += 1
        return float(self.calls)


class Remembers:
    """A reply that was seen before scores 0, so the second grading of it differs."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, response: str) -> float:
        self.longest = max(self.longest, len(response))
        return len(response) / (self.longest or 1)


def test_state() -> None:
    made, graded = contract(Counts)
    with pytest.raises(AssertionError, match="the second time"):
        made.test_deterministic(graded)
    made, graded = contract(Remembers)
    with pytest.raises(AssertionError, match="in another order"):
        made.test_order_does_not_matter(graded)


def test_alarm_off_the_main_thread() -> None:
    def reward(response: str) -> float:
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        return 1.0

    made, graded = contract(reward)
    with pytest.raises(AssertionError, match="in a thread: .*signal only works in main thread"):
        made.test_same_off_the_main_thread(graded)


def test_rates() -> None:
    made, graded = contract(lambda response, target: RewardResult(float(target in response)), **EXAMPLES)
    made.test_accepts(graded)
    made.reject = [("it is 119", "19"), ("it is 18", "19")]  # type: ignore[misc]
    with pytest.raises(AssertionError, match=r"50\.0% false accepts \(1 of 2\)"):
        made.test_rejects(graded)
    made.max_false_accepts = 0.5  # type: ignore[misc]
    made.test_rejects(graded)
    made.accept = [("nineteen", "19")]  # type: ignore[misc]
    with pytest.raises(AssertionError, match="100.0% false rejects"):
        made.test_accepts(graded)


@pytest.mark.parametrize(
    ("probe", "reward"),
    [
        ("numbers", lambda response, target: float(target in response.split())),
        ("echo", lambda response, prompt: float("19" in response or "12" in response)),
        ("tags", lambda response: float("19" in response or "<answer>" in response)),
        ("target words", lambda response: float("19" in response or "right" in response)),
    ],
)
def test_hacks(probe: str, reward: Any) -> None:
    made, graded = contract(reward, **EXAMPLES)
    with pytest.raises(AssertionError, match="scores 1 for target '19'"):
        made.test_knowing_nothing_does_not_pay(graded, probe)


def test_quadratic_time() -> None:
    pattern = re.compile("<answer>(.*?)</answer>", re.DOTALL)
    made, graded = contract(lambda response: float(bool(pattern.search(response))))
    with pytest.raises(AssertionError, match="ms for 32 kB"):
        made.test_time_grows_in_proportion(graded, "<answer>")
