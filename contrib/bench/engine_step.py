"""Where a step of the generator's engine goes: scheduling, launching, waiting for the device, taking tokens in.

    python contrib/bench/engine_step.py --model FOLDER --sequences 256 --tokens 256
    python contrib/bench/engine_step.py --model FOLDER --sequences 32 --tokens 64 --device cpu

The engine is the generator's, in this process. With one process asynchronous scheduling lets the device compute one
step while this thread takes the step before in, so a step lasts as long as the longer of the two; `waiting` near zero
says that the thread is the longer one. On a GPU the profiler then adds how long it was busy. What a run preloads into
the generator's process on a CPU (tcmalloc, Intel's OpenMP) is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from gpu_sync_common import generators_environment


def engine_of(arguments: argparse.Namespace) -> Any:
    from forge_plugin_vllm.arguments import engine_arguments
    from forge_plugin_vllm.config import VLLMConfig
    from forge_plugin_vllm.engine import VLLMEngine

    config = VLLMConfig(max_num_seqs=arguments.sequences, gpu_memory_utilization=0.4)
    given = engine_arguments(
        config, model_path=arguments.model, max_model_len=arguments.prompt + arguments.tokens, device=arguments.device,
        seed=0, sequences=arguments.sequences,
    )  # fmt: skip
    return VLLMEngine(given)


class Clock:
    """Seconds spent in the functions it was put around; one inside another counts for both."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def around(self, owner: Any, name: str, label: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.spent[label] += time.perf_counter() - began

        setattr(owner, name, timed)


def measure(engine: Any, arguments: argparse.Namespace) -> None:
    """On the engine's thread."""
    from forge_plugin_vllm.outputs import sampling_params
    from vllm.v1.executor.uniproc_executor import AsyncOutputFuture

    from forge_host.types import SamplingParams

    collector, core, clock = engine._collector, engine._engine.engine_core.engine_core, Clock()
    clock.around(core.scheduler, "schedule", "scheduling")
    clock.around(core.model_executor, "execute_model", "launching the model")
    clock.around(core.model_executor, "sample_tokens", "launching the sampler")
    clock.around(AsyncOutputFuture, "result", "waiting")
    clock.around(core.scheduler, "update_from_output", "taking tokens in")
    clock.around(collector._core, "get_output", "the core")
    params = SamplingParams(n=8, max_tokens=arguments.tokens, ignore_eos=True)

    def batch(number: int) -> tuple[int, float]:
        for i in range(arguments.sequences // 8):
            prompt = [(number + 7 * i + j) % 30000 for j in range(arguments.prompt)]
            collector.add(f"{number}-{i}", {"prompt_token_ids": prompt}, sampling_params(params))
        clock.spent.clear()
        steps, began = 0, time.perf_counter()
        while collector:
            collector.step()
            steps += 1
        return steps, time.perf_counter() - began

    batch(0)
    for number in range(1, 1 + arguments.repeats):
        steps, seconds = batch(number)
        parts = {**clock.spent, "collecting": seconds - clock.spent["the core"]}
        shown = ", ".join(f"{name} {spent / steps * 1e3:.2f}" for name, spent in parts.items())
        rate = arguments.sequences * arguments.tokens / seconds
        print(f"{seconds / steps * 1e3:.2f} ms a step, {rate:,.0f} tokens/s: {shown}", flush=True)
    if arguments.device == "cuda":
        busy(batch, arguments.repeats + 1)


def busy(batch: Callable[[int], tuple[int, float]], number: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        steps, _ = batch(number)
    kernels = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in kernels)
    print(f"the device works {total / 1e3 / steps:.2f} ms a step; most in")
    for row in kernels[:12]:
        print(f"  {row.self_device_time_total / 1e3 / steps:6.3f} ms  {row.count / steps:6.1f} x  {row.key[:90]}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    from forge_plugin_vllm.config import VLLMConfig

    os.environ |= generators_environment(VLLMConfig(), arguments.device)
    engine = engine_of(arguments)
    await engine.start()
    await engine._call(lambda: measure(engine, arguments))
    await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
