"""Generation inside this host against the generator's engine used alone, alternating in one run.

    for row in bench_generate("/models/SmolLM2", sequences=32, tokens=96):
        print(row)

Inside: a Monarch service, one request a group, log-probabilities and policy versions with every token. Alone: what the
generator's class names as its `alone`, a function in a process of its own that loads the engine with the same settings
and then generates the same numbers of tokens, without log-probabilities. Both stay loaded and take turns.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from forge_host.errors import RunError, UsageError

STARTUP_S, ROUND_S = 600.0, 600.0  #: deadlines


@attrs.frozen(kw_only=True)
class GenerateTimes:
    """Medians over the rounds, tokens per second; `ratio` is that of each round's pair, median."""

    sequences: int
    tokens: int
    alone: float
    inside: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.sequences} sequences x {self.tokens} tokens: inside {self.inside:,.0f} tokens/s, alone "
            f"{self.alone:,.0f} tokens/s, ratio {self.ratio:.3f}"
        )


def bench_generate(
    model: str,
    *,
    generator: str = "vllm",
    settings: Mapping[str, Any] | None = None,
    sequences: int = 32,
    tokens: int = 96,
    prompt_tokens: int = 64,
    n: int = 8,
    repeats: int = 3,
) -> GenerateTimes:
    """
    Args:
        model: local Hugging Face folder.
        settings: fields of the generator's configuration.
        sequences: responses in flight at once, `n` to a prompt.
        tokens: of each response; the end-of-sequence token does not end it.

    Raises:
        UsageError: the folder is no model, the generator has no `alone`, or sequences are no multiple of n.
        RunError: either side fails.
    """
    if sequences % n:
        raise UsageError(f"{sequences} sequences are no multiple of {n} to a prompt", fix="change --sequences or -n")
    config = Path(model) / "config.json"
    if not config.is_file():
        raise UsageError(f"{model} is not a model folder: it has no config.json", fix="give a Hugging Face folder")
    vocabulary = int(json.loads(config.read_text()).get("vocab_size", 1000))
    draw = random.Random(0)
    prompts = [
        [[draw.randrange(vocabulary) for _ in range(prompt_tokens)] for _ in range(sequences // n)]
        for _ in range(repeats + 1)
    ]
    rates = asyncio.run(_alternate(model, generator, dict(settings or {}), prompts, n, tokens))
    rates = rates[1:]  # the first warms up
    return GenerateTimes(
        sequences=sequences,
        tokens=tokens,
        alone=statistics.median(alone for alone, _ in rates),
        inside=statistics.median(inside for _, inside in rates),
        ratio=statistics.median(inside / alone for alone, inside in rates),
    )


async def _alternate(
    model: str, reference: str, settings: dict[str, Any], prompts: Sequence[Any], n: int, tokens: int
) -> list[tuple[float, float]]:
    from forge_host.config.schema import RunConfig, ServiceConfig, TrainingConfig
    from forge_host.plugins import PluginHost
    from forge_host.plugins.building import load_target
    from forge_host.runtime.context import RoleContext
    from forge_host.runtime.hosts import this_machine
    from forge_host.runtime.placement import place
    from forge_host.runtime.session import Session
    from forge_host.types import SamplingParams, Use

    host = PluginHost.load()
    use = Use(reference, settings)
    cls, config = load_target(host.find("generator", reference)), host.configure("generator", use)
    if not hasattr(cls, "alone"):
        raise UsageError(f"generator `{reference}` does not say how it runs alone (`alone` of its class)")
    options = ServiceConfig()
    where = place({"generator": options}, [this_machine()])["generator"]
    longest = len(prompts[0][0]) + tokens
    run = RunConfig(model=model, training=TrainingConfig(seq_len=longest), services={"generator": options})
    with tempfile.TemporaryDirectory() as folder:
        context = RoleContext(
            role="generator", model_path=model, config=run, plan=None, transport=Use("builtin/shm"), namespace="bench",
            run_dir=folder, device=where.device, shares_device=True,
        )  # fmt: skip
        environment = cls.environment(config, context)
        with Alone(cls.alone, config, context, environment) as alone:
            await asyncio.to_thread(alone.ready)  # one after the other: vLLM measures the memory that is free
            files = [reference.rpartition(":")[0]] if ".py:" in reference else []
            async with Session(log_dir=folder, files=files) as session:
                service = await session.start_service(
                    cls, options, (config, context), {}, role="generator", place=where, environment=environment
                )
                params = SamplingParams(n=n, max_tokens=tokens, temperature=1.0, ignore_eos=True)
                rates = []
                for batch in prompts:
                    rate = await asyncio.to_thread(alone.rate, batch, params)
                    began = time.perf_counter()
                    groups = await asyncio.gather(*(service.generate.route(prompt, params) for prompt in batch))
                    made = sum(len(completion.token_ids) for group in groups for completion in group)
                    rates.append((rate, made / (time.perf_counter() - began)))
                    if made != len(batch) * n * tokens:
                        raise RunError(f"the generator made {made} tokens instead of {len(batch) * n * tokens}")
                return rates


class Alone:
    """The engine in a process of its own; `target(config, context)` gives a function (prompts, params) -> tokens."""

    def __init__(self, target: str, config: Any, context: Any, environment: Mapping[str, str]) -> None:
        here, there = multiprocessing.Pipe()
        self._pipe = here
        before = {name: os.environ.get(name) for name in environment}
        os.environ |= environment  # libraries are preloaded when the process starts
        try:
            process = multiprocessing.get_context("spawn").Process(target=_alone, args=(there, target, config, context))
            process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
        there.close()
        self._process = process

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()  # it ends by itself, with what it started
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def ready(self) -> None:
        self._answer(STARTUP_S)

    def rate(self, prompts: Any, params: Any) -> float:
        """Tokens per second of one batch."""
        self._pipe.send((prompts, params))
        return float(self._answer(ROUND_S))

    def _answer(self, seconds: float) -> Any:
        try:
            if not self._pipe.poll(seconds):
                raise RunError(f"the engine alone did not answer within {seconds:.0f} s")
            answer = self._pipe.recv()
        except EOFError as error:
            raise RunError("the engine alone ended; see its output above") from error
        if isinstance(answer, str):
            raise RunError(f"the engine alone failed: {answer}")
        return answer


def _alone(pipe: Any, target: str, config: Any, context: Any) -> None:
    import importlib

    module, _, name = target.partition(":")
    try:
        work = getattr(importlib.import_module(module), name)(config, context)
        _answer(pipe, True)
        while (asked := _asked(pipe)) is not None:
            began = time.perf_counter()
            made = work(*asked)
            _answer(pipe, made / (time.perf_counter() - began))
    except Exception as error:  # the caller raises it
        _answer(pipe, f"{type(error).__name__}: {error}")
        raise


def _asked(pipe: Any) -> Any:
    """The next batch; None when the caller is gone."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def _answer(pipe: Any, value: Any) -> None:
    with suppress(BrokenPipeError):  # the caller is gone
        pipe.send(value)
