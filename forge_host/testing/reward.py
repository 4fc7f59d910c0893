"""What every reward owes its host, as a pytest class.

    from forge_host.testing import RewardContract

    class TestMath(RewardContract):
        reward = "math"
        accept = [("so it is 19", "19"), (r"\\boxed{19.0}", "19")]
        reject = [("so it is 119", "19"), ("", "19")]

Examples are pairs of response and target (or triples that begin with the prompt). With `accept` given, replies that
know nothing (an echo of the prompt, a list of all numbers, empty tags) must score below every accepted example.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from forge_host.api import REWARD_ARGUMENTS, Completion, Prompt, RewardResult
from forge_host.loop.scoring import as_result, reward_values
from forge_host.plugins.calling import CallByName
from forge_host.testing.component import load_component

Example = tuple[str, str | None] | tuple[str, str, str | None]

#: Responses a model may well write; none may raise.
ODD_RESPONSES = (
    "", " \n\t", "5", "\x00", "é你好🙂", "\ud800", "1" * 5000, "x" * 65_536, "<answer>", "</answer><answer>",
    "\\boxed{",
    "<think>" * 50, "9^{9^{9^{9}}}", "nan", "inf", "-0", "1e999999999", "%s %n {0} {}", "$" * 50, "'; DROP TABLE",
)  # fmt: skip
#: Repeated to tens of kilobytes: what makes careless regular expressions quadratic.
PIECES = ("<", "<answer>", "<think>", "\\boxed{", "1", "1 ", " ", "a", "-", "(", "a\n")


class RewardContract:
    """Subclass it, name the reward and, if it has settings, give them.

    Attributes:
        reward: component reference.
        config: values of its fields.
        prompt: prompt of examples that bring none.
        accept, reject: examples that must score at least, or below, `threshold`.
        max_false_rejects, max_false_accepts: shares of them that may not.
        hacks_allowed: probes that may score like a right answer: "echo", "numbers", "tags", "target words".
        timed: check that time grows in proportion to the length; switch it off for a reward that waits for others.
    """

    reward: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    prompt: ClassVar[str] = "What is 12 + 7?"
    accept: ClassVar[Sequence[Example]] = ()
    reject: ClassVar[Sequence[Example]] = ()
    threshold: ClassVar[float] = 0.5
    max_false_rejects: ClassVar[float] = 0.0
    max_false_accepts: ClassVar[float] = 0.0
    hacks_allowed: ClassVar[tuple[str, ...]] = ()
    timed: ClassVar[bool] = True

    @pytest.fixture
    def graded(self) -> Callable[..., RewardResult | None]:
        """Calls a fresh instance of the reward: `graded(response, target, prompt=...)`."""
        return Graded(self.make(), self.prompt)

    def make(self) -> Any:
        """A new instance; override it for a reward that needs a server or a folder."""
        return load_component("reward", self.reward, self.config)

    # --- what it takes and gives --------------------------------------------------------------------------------------

    def test_asks_for_what_exists(self) -> None:
        """Its arguments are among REWARD_ARGUMENTS, and it looks at the reply in some way."""
        names = CallByName(self.make(), REWARD_ARGUMENTS, f"reward `{self.reward}`").names
        looks = {"response", "completion", "length", "finish_reason"}
        assert names & looks, f"it takes none of {sorted(looks)}, so every reply scores the same"

    @pytest.mark.parametrize("response", ODD_RESPONSES, ids=lambda text: repr(text[:12]))
    def test_grades_any_reply(self, graded: Graded, response: str) -> None:
        """A finite number, a RewardResult or None for anything a model may write, with a target and without."""
        for target in ("19", None):
            try:
                graded(response, target)
            except TimeoutError:
                continue  # "not decided in time" is an error the host counts, not a grade

    def test_failure_is_not_a_score(self) -> None:
        """A reply that is no text raises (or is None): a reward that catches everything hides its bugs as zeros."""
        reward = CallByName(self.make(), REWARD_ARGUMENTS, f"reward `{self.reward}`")
        if not reward.names & {"response", "completion"}:
            return
        values = {**_values("", "19", self.prompt), "response": _Broken(), "completion": _Broken()}
        try:
            result = _finished(reward(**values))
        except Exception:
            return
        assert result is None, f"a broken reply got the score {result!r}; let the exception out instead"

    # --- the same answer, always --------------------------------------------------------------------------------------

    def test_deterministic(self, graded: Graded) -> None:
        """The same input gives the same grade: again, and from another instance."""
        other = Graded(self.make(), self.prompt)
        for response, target, prompt in self._inputs():
            first = graded(response, target, prompt)
            assert graded(response, target, prompt) == first, f"{response!r}: graded differently the second time"
            assert other(response, target, prompt) == first, f"{response!r}: another instance grades differently"

    def test_order_does_not_matter(self, graded: Graded) -> None:
        """Grades do not depend on what was graded before."""
        inputs = self._inputs()
        grades = [graded(*item) for item in inputs]
        order = list(range(len(inputs)))
        random.Random(0).shuffle(order)
        shuffled = {i: graded(*inputs[i]) for i in order}
        changed = [inputs[i][0] for i in order if shuffled[i] != grades[i]]
        assert not changed, f"graded differently in another order: {changed[:5]}"

    def test_same_off_the_main_thread(self, graded: Graded) -> None:
        """It works in a thread: SIGALRM deadlines do not, and the host calls rewards in threads."""
        inputs: list[tuple[str, str | None, str]] = self._inputs()
        box: list[Any] = []

        def work() -> None:
            try:
                box.append([graded(*item) for item in inputs])
            except Exception as error:
                box.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert box[0] == [graded(*item) for item in inputs], f"in a thread: {box[0]!r}"

    # --- right and wrong ----------------------------------------------------------------------------------------------

    def test_accepts(self, graded: Graded) -> None:
        """Right replies score at least `threshold`; the share that does not is the false-reject rate."""
        self._check_rate(
            "false rejects", self.accept, self.max_false_rejects, lambda value: value >= self.threshold, graded
        )

    def test_rejects(self, graded: Graded) -> None:
        """Wrong replies score below `threshold`; the share that does not is the false-accept rate."""
        self._check_rate(
            "false accepts", self.reject, self.max_false_accepts, lambda value: value < self.threshold, graded
        )

    @pytest.mark.parametrize("probe", ["echo", "numbers", "tags", "target words"])
    def test_knowing_nothing_does_not_pay(self, graded: Graded, probe: str) -> None:
        """Replies without an answer score below every accepted example."""
        if probe in self.hacks_allowed:
            pytest.skip(f"`hacks_allowed` of this contract names {probe!r}")
        paid = []
        for response, target, prompt in map(self._split, self.accept):
            right, hack = graded(response, target, prompt), graded(hacked(probe, prompt), target, prompt)
            if right is not None and hack is not None and hack.value >= right.value:
                paid.append(f"{hacked(probe, prompt)[:60]!r} scores {hack.value:g} for target {target!r}")
        assert not paid, "\n".join(paid[:5])

    # --- time ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("piece", PIECES)
    def test_time_grows_in_proportion(self, graded: Graded, piece: str) -> None:
        """Eight times the text takes about eight times as long (64 times would be quadratic)."""
        if not self.timed:
            pytest.skip("`timed` of this contract is off")
        short, long = (processor_time(lambda n=n: graded((piece * n)[:n], "19")) for n in (4_096, 32_768))  # type: ignore[misc]
        assert long < 24 * short + 0.02, f"{short * 1000:.1f} ms for 4 kB of {piece!r}, {long * 1000:.1f} ms for 32 kB"

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _split(self, example: Example) -> tuple[str, str | None, str]:
        """(response, target, prompt)"""
        if len(example) == 3:
            return example[1], example[2], example[0]
        return example[0], example[1], self.prompt

    def _inputs(self) -> list[tuple[str, str | None, str]]:
        plain = [(text, "19", self.prompt) for text in ("19", "It is 19.", "<answer>19</answer>", "20", "", "é🙂")]
        return plain + [self._split(example) for example in [*self.accept, *self.reject][:50]]

    def _check_rate(
        self, what: str, examples: Sequence[Example], allowed: float, good: Callable[[float], bool], graded: Graded
    ) -> None:
        if not examples:
            pytest.skip(f"this contract has no {'`accept`' if examples is self.accept else '`reject`'} examples")
        grades = [(self._split(example), graded(*self._split(example))) for example in examples]
        bad = [f"{r!r} for target {t!r}: {g}" for (r, t, _), g in grades if g is None or not good(g.value)]
        rate = len(bad) / len(examples)
        assert rate <= allowed, f"{rate:.1%} {what} ({len(bad)} of {len(examples)}), such as\n" + "\n".join(bad[:5])


class Graded:
    """A reward called with plain values; returns its checked result."""

    def __init__(self, reward: Any, prompt: str) -> None:
        self.call, self.prompt = CallByName(reward, REWARD_ARGUMENTS, "reward"), prompt

    def __call__(self, response: str, target: str | None, prompt: str | None = None) -> RewardResult | None:
        return as_result(_finished(self.call(**_values(response, target, prompt or self.prompt))))


class _Broken:
    """Stands for a reply that is not text; using it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"broken reply: .{name}")

    def __str__(self) -> str:
        raise RuntimeError("broken reply")


def hacked(probe: str, prompt: str) -> str:
    """A reply to `prompt` that knows nothing."""
    if probe == "echo":
        return prompt
    if probe == "numbers":
        return " ".join(str(number) for number in range(-100, 1001))
    if probe == "tags":
        return "<think></think><answer></answer>\\boxed{}####"
    return "The answer is the right answer, as asked: <answer>the answer</answer> \\boxed{answer}"


def processor_time(call: Callable[[], Any]) -> float:
    """Seconds of processor time of one call, the median of five; fewer if they are slow."""
    times: list[float] = []
    while len(times) < 5 and sum(times) < 0.5:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def _values(response: str, target: str | None, prompt: str) -> dict[str, Any]:
    tokens = list(range(min(len(response), 4096)))
    completion = Completion(text=response, token_ids=tokens, logprobs=[-1.0] * len(tokens))
    return reward_values(Prompt(id="contract", text=prompt, target=target), completion, 4096)


def _finished(result: Any) -> Any:
    """The value of a plain or an async reward."""

    async def wait() -> Any:
        return await result

    return asyncio.run(wait()) if inspect.isawaitable(result) else result
