"""Rows of gpu_sync.py: from a trainer's weights to vLLM serving them, idle and with requests in flight.

python contrib/bench/gpu_sync.py --rows vllm:cuda-ipc

The trainer is TorchTitan's model in this process (float32 master weights, a bfloat16 model, which is published), vLLM
runs in another; the time goes from the call that publishes to the answer that the new weights are served. Monarch's
calls (about 1 ms) come on top.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_sync_common import CPU, TRANSPORTS, build, device, generators_environment, model_folder, say, timed, wait

SETTINGS: dict[str, Any] = {"gpu_memory_utilization": None if CPU else 0.4}

# --- vllm: from the trainer's weights to vLLM serving them ------------------------------------------------------------


@contextmanager
def as_generator() -> Iterator[None]:
    """Processes that are started inside have the environment of a run's generator."""
    from forge_plugin_vllm.config import VLLMConfig

    before = dict(os.environ)
    os.environ |= generators_environment(VLLMConfig(**SETTINGS), device())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def trainers_environment(kind: str) -> dict[str, str]:
    """What a run sets for the trainer's process."""
    from types import SimpleNamespace

    from forge_plugin_titan.actor import TitanTrainer
    from forge_plugin_titan.config import TitanConfig

    return TitanTrainer.environment(TitanConfig(), SimpleNamespace(device=kind))


def generator(pipe: Any, transport: str, folder: str) -> None:
    """The generator's process: vLLM behind a pipe."""
    from forge_plugin_vllm.config import VLLMConfig

    try:
        asyncio.run(serve(pipe, VLLMConfig(**SETTINGS), transport, folder))
    except Exception as error:
        pipe.send(f"generator failed: {type(error).__name__}: {error}")
        raise


async def serve(pipe: Any, config: Any, transport: str, folder: str) -> None:
    from forge_plugin_vllm.arguments import engine_arguments
    from forge_plugin_vllm.checkpoint import expected_shapes, ties_embeddings
    from forge_plugin_vllm.engine import VLLMEngine
    from forge_plugin_vllm.worker import Opening

    from forge_host.types import SamplingParams, Use

    arguments = engine_arguments(
        config, model_path=folder, max_model_len=1024, device=device(), seed=0, shared=True, sequences=64
    )
    arguments["skip_tokenizer_init"] = True
    opening = Opening(
        lock=None, transport=Use(TRANSPORTS[transport]), namespace="gpu-sync", shapes=expected_shapes(folder),
        tied=ties_embeddings(folder),
    )  # fmt: skip
    engine = VLLMEngine(arguments, opening=opening)
    await engine.start()
    pipe.send("ready")
    busy: list[Any] = []
    while (asked := await asyncio.to_thread(pipe.recv)) is not None:
        kind, value = asked
        if kind == "update":
            before = engine.metrics()["sync/pause_s"]
            await engine.update_weights(value)
            pipe.send(engine.metrics()["sync/pause_s"] - before)
        elif kind == "greedy":
            done = await engine.generate(list(range(10, 60)), SamplingParams(n=1, max_tokens=32, temperature=0))
            pipe.send((tuple(done[0].token_ids), tuple(done[0].logprobs), set(done[0].policy_versions)))
        elif kind == "busy":
            params = SamplingParams(n=8, max_tokens=900)
            busy = [asyncio.ensure_future(engine.generate([5 + i] * 20, params)) for i in range(value)]
            await asyncio.sleep(3)
            pipe.send("busy")
        elif kind == "idle":
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            pipe.send(engine._loading)
    await engine.stop()


def titan(folder: str) -> Any:
    """A trainer whose weights are the folder's; the function that changes them."""
    import torch
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.device import prepare
    from forge_plugin_titan.engine import TitanEngine

    from forge_host.config.schema import ParallelismConfig, TrainingConfig
    from forge_host.rl import Objective

    training, where = TrainingConfig(seq_len=1024), prepare(device())
    engine = TitanEngine(TitanConfig(), folder, training, ParallelismConfig(), Objective(weighted), device=where)
    first = [p.detach().clone() for p in engine.model.parameters()]

    @torch.no_grad()
    def change(seed: int) -> None:
        """Seed 0 gives the folder's weights."""
        torch.manual_seed(seed)
        for parameter, kept in zip(engine.model.parameters(), first, strict=True):
            parameter.copy_(kept if not seed else kept + torch.randn_like(kept) * 0.02)

    return engine, change


def weighted(logprobs: Any, generator_logprobs: Any, advantages: Any) -> Any:
    return -(logprobs - generator_logprobs).exp() * advantages


def vllm(out: Path, transport: str) -> None:
    folder = model_folder(out)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=generator, args=(there, transport, folder))
    with as_generator():
        child.start()
    there.close()
    engine, change = titan(folder)
    mine = build(transport)

    def ask(kind: str, value: Any = None) -> Any:
        here.send((kind, value))
        return expect()

    def expect() -> Any:
        if not here.poll(300):
            raise TimeoutError("the generator does not answer")
        answer = here.recv()
        if isinstance(answer, str) and answer.startswith("generator failed"):
            raise RuntimeError(answer)
        return answer

    def sync(version: int) -> tuple[float, float, float]:
        wait()
        began = time.perf_counter()
        receipt = mine.publish(version, engine.named_tensors())
        published = time.perf_counter()
        pause = ask("update", receipt)
        return published - began, time.perf_counter() - began, pause

    try:
        expect()
        original = ask("greedy")
        first = sync(1)  # the folder's weights, by vLLM's reload
        again = ask("greedy")
        change(7)
        sync(2)
        other = ask("greedy")
        change(0)
        sync(3)  # the folder's weights, in place
        back = ask("greedy")
        checks = {
            "reload keeps the output": original[:2] == again[:2],
            "other weights, other output": other[1] != original[1],
            "in place gives the reload's output": back[:2] == again[:2],
            "versions": (again[2], other[2], back[2]) == ({1}, {2}, {3}),
        }
        copy = copies(engine)
        idle, copied = [], []
        for version in range(4, 12):
            idle.append(sync(version))
            copied.append(timed(copy, 3))
        ask("busy", 4 if CPU else 32)
        loaded = [sync(version) for version in range(12, 20)]
        how = ask("idle")
    finally:
        here.send(None)
        child.join(30)
        if child.is_alive():
            child.kill()
    mine.close()
    two = 2 * statistics.median(copied)
    say(f"vLLM by {transport}: first update {first[1] * 1e3:.0f} ms; from then on {how!r}")
    for name, found in (("idle", idle), (f"{32 if CPU else 256} sequences in flight", loaded)):
        p, whole, pause = (statistics.median(x[i] for x in found) * 1e3 for i in range(3))
        say(f"vLLM by {transport}, {name}: trainer's weights to vLLM serving them {whole:.1f} ms "
            f"(max {max(x[1] for x in found) * 1e3:.1f}), publish {p:.1f} ms, pause {pause:.1f} ms, "
            f"{whole / 1e3 / two:.2f} x two copies of the bytes on the device")  # fmt: skip
    say(f"vLLM by {transport}: " + ", ".join(f"{name} {'ok' if right else 'FAILED'}" for name, right in checks.items()))


def copies(engine: Any) -> Callable[[], None]:
    """Copies the published tensors into others."""
    held = [tensor.clone() for _, tensor in engine.named_tensors()]
    others = [tensor.clone() for tensor in held]

    def work() -> None:
        for other, tensor in zip(others, held, strict=True):
            other.copy_(tensor)

    return work
