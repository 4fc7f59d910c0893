"""From what vLLM's core makes to completions, with a core that makes what it is told to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from forge_plugin_vllm.collect import Answer, Collector, Sample
from forge_plugin_vllm.outputs import completions_of

from forge_host.errors import RunError


def answer(*samples: Sample) -> Answer:
    return Answer("7", 2, {f"7.{index}": sample for index, sample in enumerate(samples)}, 0)


def sample(reason: str = "stop", starts: Any = ((0, 3),), logprobs: Any = (-0.5, -1.0), text: Any = None) -> Sample:
    return Sample(list(starts), [7, 8], list(logprobs), reason, text)


def joined(token_ids: Any) -> str:
    return "+".join(map(str, token_ids))


def test_completions_in_sample_order() -> None:
    found = completions_of(answer(sample(starts=((0, 3), (1, 4))), sample("length"), sample(text="8")), [1, 2], joined)
    assert [c.text for c in found] == ["7", "7+8", "8"], "the token that ended it is no text"
    assert [c.policy_versions for c in found] == [(3, 4), (3, 3), (3, 3)]
    assert [c.finish_reason for c in found] == ["stop", "length", "stop"]
    assert found[0].prompt_ids == (1, 2) and found[0].logprobs == (-0.5, -1.0) and found[0].token_ids == (7, 8)


def test_versions_of_updates_between_tokens() -> None:
    starts = [(0, 3), (0, 4), (2, 5), (2, 6)]
    assert Sample(starts, [1, 2, 3, 4]).versions() == (4, 4, 6, 6)
    assert Sample(starts[:2], []).versions() == ()


@pytest.mark.parametrize(
    ("broken", "message"),
    [({"reason": "error"}, "'error'"), ({"logprobs": ()}, "2 tokens and 0 log-probabilities")],
)
def test_incomplete_outputs_are_errors(broken: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        completions_of(answer(sample(**broken)), [1], joined)


class Core:
    """vLLM's engine as far as `Collector` knows it; `plan` holds the outputs of each step."""

    def __init__(self, *plan: Any) -> None:
        self.plan, self.added, self.aborted = list(plan), list[Any](), list[str]()
        self.engine_core = self.input_processor = self.output_processor = self
        self.scheduler = SimpleNamespace(update_from_output=lambda scheduled, output: output)
        self.add_request = self.added.append

    def get_output(self) -> Any:
        outputs = [SimpleNamespace(request_id=n, new_token_ids=t, finish_reason=r) for n, t, r in self.plan.pop(0)]
        rows = {output.request_id: row for row, output in enumerate(reversed(outputs))}
        values = numpy.array([[-float(token)] for output in reversed(outputs) for token in output.new_token_ids])
        logprobs = SimpleNamespace(logprobs=values, cu_num_generated_tokens=None)
        self.scheduler.update_from_output(None, SimpleNamespace(logprobs=logprobs, req_id_to_index=rows))
        return SimpleNamespace(outputs=outputs)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def process_inputs(self, request_id: str, prompt: Any, params: Any, supported_tasks: Any) -> Any:
        return SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], sampling_params=params)

    def abort_requests(self, names: Any, internal: bool = False) -> None:
        self.aborted += names


def test_responses_grow_and_end_one_by_one() -> None:
    core = Core(
        [("7.0", [3], None), ("7.1", [4], None), ("8.0", [5], None)],
        [("7.0", [6], "stop"), ("7.1", [7], None), ("8.0", [8], None)],
        [("8.0", [9], "length"), ("7.1", [10], "length")],
    )
    collector = Collector(core, version=2)
    params = SimpleNamespace(n=2, seed=5, stop=None)
    collector.add("7", {"prompt_token_ids": [1, 2]}, params)
    collector.add("8", {"prompt_token_ids": [1]}, SimpleNamespace(n=1, seed=None, stop=None))
    assert [r.request_id for r in core.added] == ["7.0", "7.1", "8.0"] and params.n == 2
    assert [(r.sampling_params.n, r.sampling_params.seed) for r in core.added] == [(1, 5), (1, 6), (1, None)]
    assert collector.step() == [] and len(collector) == 3
    collector.move_to(3)
    assert collector.step() == [] and len(collector) == 2
    eight, seven = collector.step()
    assert (eight.request_id, seven.request_id, seven.prompt_tokens, len(collector)) == ("8", "7", 2, 0)
    first, second = seven.samples.values()
    assert (first.token_ids, first.logprobs, first.reason) == ([3, 6], [-3.0, -6.0], "stop")
    assert (second.token_ids, second.logprobs, second.versions()) == ([4, 7, 10], [-4.0, -7.0, -10.0], (2, 3, 3))


def test_what_the_core_refuses_leaves_nothing_in_flight() -> None:
    core = Core()

    def refuse_the_second(request: Any) -> None:
        if core.added:
            raise ValueError("no")
        core.added.append(request)

    core.add_request = refuse_the_second
    collector = Collector(core, version=0)
    with pytest.raises(ValueError, match="no"):
        collector.add("7", {"prompt_token_ids": [1]}, SimpleNamespace(n=3, seed=None, stop=None))
    assert not collector and core.aborted == ["7.0"]


def test_tokens_behind_a_stop_string_are_dropped() -> None:
    """Where one step makes several tokens."""
    core = Core([("7.0", [3, 4, 5], None)])
    output = SimpleNamespace(token_ids=[3], text="x", finish_reason="stop")
    core.process_outputs = lambda outputs: SimpleNamespace(  # type: ignore[attr-defined]
        reqs_to_abort=["7.0"], request_outputs=[SimpleNamespace(request_id="7.0", outputs=[output])]
    )
    core.add_request = lambda *request: None  # type: ignore[assignment]
    collector = Collector(core, version=0)
    collector.add("7", {"prompt_token_ids": [1]}, SimpleNamespace(n=1, seed=None, stop=["."]))
    (answer,) = collector.step()
    (sample,) = answer.samples.values()
    assert (sample.token_ids, sample.logprobs, sample.text, sample.reason) == ([3], [-3.0], "x", "stop")
    assert core.aborted == ["7.0"] and not collector


def test_a_cancelled_answer_is_forgotten() -> None:
    core = Core([("7.0", [3], None), ("8.0", [5], None)], [("7.0", [4], "length"), ("8.0", [6], "stop")])
    collector = Collector(core, version=0)
    for name in ("7", "8"):
        collector.add(name, {"prompt_token_ids": [1]}, SimpleNamespace(n=1, seed=None, stop=None))
    collector.step()
    collector.abort(["7"])
    assert core.aborted == ["7.0"] and len(collector) == 1
    assert [answer.request_id for answer in collector.step()] == ["8"] and not collector
