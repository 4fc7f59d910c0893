"""Responses as vLLM's core makes them: tokens, log-probabilities and policy versions, without vLLM's front end.

    collector = Collector(llm_engine, version=0)
    answer = collector.add("7", {"prompt_token_ids": [1, 2, 3]}, sampling_params(params))
    for answer in collector.step():          # those whose last response ended in this step
        completions_of(answer, [1, 2, 3])

vLLM's front end is made to work beside the core, in another process. Here both are one thread, and the front end's
objects for every token, with three arrays for its log-probability, took 2.7 ms of each step of 256 responses where this
takes 0.3 (one CPU core; contrib/bench/engine_step.py shows the latter). Only where a stop string has to be found in the
text does vLLM's own still look at every token.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs


@attrs.define(eq=False)
class Sample:
    """One response so far. `starts` are pairs (index of the first token, policy version); `text` only where vLLM
    looked for a stop string in it."""

    starts: list[tuple[int, int]]
    token_ids: list[int] = attrs.Factory(list)
    logprobs: list[float] = attrs.Factory(list)
    reason: str = ""
    text: str | None = None

    def versions(self) -> tuple[int, ...]:
        """The policy version of every token."""
        ends = [start for start, _ in self.starts[1:]] + [len(self.token_ids)]
        return tuple(v for (start, v), end in zip(self.starts, ends, strict=True) for _ in range(start, end))


@attrs.define(eq=False)
class Answer:
    """The responses to one prompt by vLLM's name of each; `left` of them go on."""

    request_id: str
    prompt_tokens: int
    samples: Mapping[str, Sample]
    left: int


class Collector:
    """Everything that is in flight in one vLLM engine whose core runs in this process. One thread calls it.

    Args:
        engine: vLLM's `LLMEngine` over an `InprocClient`.
        version: of the policy that it holds.
    """

    def __init__(self, engine: Any, version: int) -> None:
        self.version = version
        self._engine, self._core = engine, engine.engine_core
        self._answers: dict[str, Answer] = {}
        self._flying: dict[str, tuple[Sample, Answer]] = {}  #: responses by vLLM's name
        self._watched: set[str] = set()  #: those with stop strings
        self._rows: Mapping[str, int] = {}
        self._logprobs: list[float] = []
        scheduler = self._core.engine_core.scheduler
        self._take_in = scheduler.update_from_output
        scheduler.update_from_output = self._set_apart

    def __len__(self) -> int:
        """Responses in flight."""
        return len(self._flying)

    def add(self, request_id: str, prompt: Mapping[str, Any], params: Any) -> Answer:
        """Hand a prompt to the core, `params.n` times; `request_id` must be new."""
        request = self._engine.input_processor.process_inputs(
            request_id, prompt, params, supported_tasks=self._engine.get_supported_tasks()
        )
        names = [f"{request_id}.{index}" for index in range(params.n)]
        samples = {name: Sample([(0, self.version)]) for name in names}
        answer = self._answers[request_id] = Answer(request_id, len(request.prompt_token_ids), samples, params.n)
        for index, (name, sample) in enumerate(samples.items()):
            one = copy.copy(request)
            one.request_id = one.external_req_id = name
            one.sampling_params = _one(request.sampling_params, index)
            try:
                if params.stop:
                    self._watched.add(name)
                    self._engine.output_processor.add_request(one, None)
                self._core.add_request(one)
            except Exception:  # raised again; those of the n that are in the core already would go on for nobody
                self.abort([request_id])
                raise
            self._flying[name] = sample, answer
        return answer

    def step(self) -> list[Answer]:
        """One step of the core; the answers that are complete after it."""
        done: list[Answer] = []
        watched: list[Any] = []
        for output in self._core.get_output().outputs:
            name = output.request_id
            found = self._flying.get(name)
            if found is None:  # cancelled
                continue
            tokens = output.new_token_ids
            if tokens:
                sample, row = found[0], self._rows[name]
                sample.token_ids += tokens
                sample.logprobs += self._logprobs[row : row + len(tokens)]
            if name in self._watched:
                watched.append(output)
            elif output.finish_reason is not None:
                done += self._end(name, str(output.finish_reason))
        return done + self._watch(watched) if watched else done

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget what is in flight of these."""
        answers = [self._answers.pop(request_id) for request_id in request_ids]
        names = {name for answer in answers for name in answer.samples}
        self._engine.output_processor.abort_requests(self._watched & names, internal=True)
        self._watched -= names
        self._core.abort_requests([name for name in names if self._flying.pop(name, None)])

    def move_to(self, version: int) -> None:
        """Tokens from now on are of this policy version. No step may be under way."""
        self.version = version
        for sample, _ in self._flying.values():
            sample.starts.append((len(sample.token_ids), version))

    def _set_apart(self, scheduled: Any, output: Any) -> Any:
        """The scheduler's `update_from_output`: the step's log-probabilities stay here, in one list."""
        logprobs, self._logprobs = output.logprobs, []
        if logprobs is not None:
            starts = logprobs.cu_num_generated_tokens
            rows = output.req_id_to_index
            self._rows = rows if starts is None else {name: starts[row] for name, row in rows.items()}
            self._logprobs = logprobs.logprobs[:, 0].tolist()  # with `logprobs=0` the sampled token's and no other
            output.logprobs = None
        return self._take_in(scheduled, output)

    def _watch(self, outputs: Sequence[Any]) -> list[Answer]:
        made = self._engine.output_processor.process_outputs(outputs)
        self._core.abort_requests(made.reqs_to_abort)  # their text has a stop string, of which the core knows nothing
        done: list[Answer] = []
        for output in made.request_outputs:
            (last,) = output.outputs
            self._watched.discard(output.request_id)
            sample = self._flying[output.request_id][0]
            sample.text, end = last.text, len(last.token_ids)
            del sample.token_ids[end:], sample.logprobs[end:]  # of several tokens of one step, those behind the string
            done += self._end(output.request_id, str(last.finish_reason))
        return done

    def _end(self, name: str, reason: str) -> list[Answer]:
        sample, answer = self._flying.pop(name)
        sample.reason = reason
        answer.left -= 1
        return [] if answer.left else [self._answers.pop(answer.request_id)]


def _one(params: Any, index: int) -> Any:
    """vLLM's parameters of one of `params.n` responses; with a seed each has its own."""
    one = copy.copy(params)
    one.n = 1
    if params.seed is not None:
        one.seed = params.seed + index
    return one
