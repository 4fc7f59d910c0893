"""One row of the trainer's benchmark, in this process.

print(measure(Task(model="/models/smollm2", tokens=4096, device="cpu"), "shared", CPU_ROWS["shared"]))
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.loop.batch import Row, make_batches
from forge_host.rl import Objective, linear_logprobs
from forge_host.types import Completion
from forge_plugin_titan.actor import settle
from forge_plugin_titan.bench import Settings, Task, titan_config
from forge_plugin_titan.device import prepare
from forge_plugin_titan.engine import TitanEngine

PHASES = {
    "packing": "packing", "forward": "the forward pass", "loss": "the loss", "backward": "the backward pass",
    "optimizer": "the optimizer step",
}  # fmt: skip


def weighted(logprobs: Tensor, generator_logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -(logprobs - generator_logprobs).exp() * advantages


def data(task: Task, vocabulary: int, *, mixed: bool = False) -> list[Row]:
    """Rows of random tokens in groups that share a prompt; `mixed` draws the responses' lengths evenly from 1 up."""
    generator = torch.Generator().manual_seed(0)

    def ids(number: int) -> list[int]:
        return torch.randint(vocabulary, (number,), generator=generator).tolist()

    number = max(task.group, task.tokens // (task.prompt + task.response))
    prompts = [ids(task.prompt) for _ in range(-(-number // task.group))]
    lengths = [task.response] * number
    if mixed:
        number = 2 * number - task.prompt * number // (task.prompt + task.response)  # about as many tokens
        prompts += [ids(task.prompt) for _ in range(-(-number // task.group) - len(prompts))]
        lengths = (1 + torch.randint(task.response, (number,), generator=generator)).tolist()
    return [
        Row(
            Completion(
                text="", prompt_ids=prompts[i // task.group], token_ids=ids(lengths[i]), logprobs=[-10.0] * lengths[i]
            ),
            i // task.group, 0.0, 0.5 - i % 2,
        )
        for i in range(number)
    ]  # fmt: skip


def measure(task: Task, name: str, settings: Mapping[str, Settings]) -> dict[str, Any]:
    """Figures of the row: seconds are of one step, `first_s` of the first one with its compilation."""
    device = prepare(task.device)
    cuda = device.type == "cuda"
    torch._dynamo.reset()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    training = TrainingConfig(seq_len=max(2, task.prompt + task.response), **settings["training"])
    engine = TitanEngine(
        titan_config(settings), task.model, training, ParallelismConfig(), Objective(weighted), device=device
    )
    rows = data(task, engine.spec.vocab_size, **settings["data"])
    bins = min(len(rows), max(1, -(-sum(r.num_tokens for r in rows) // training.micro_batch_tokens)))
    inputs, targets = make_batches(rows, bins)
    began = time.perf_counter()
    engine.train_step(inputs, targets)
    first = time.perf_counter() - began
    norm, loss = engine.metrics()["policy/grad_norm"], engine.metrics()["policy/loss"]
    settle()
    for _ in range(task.warmup - 1):
        engine.train_step(inputs, targets)
    began = time.perf_counter()
    for _ in range(task.steps):
        engine.train_step(inputs, targets)
    seconds = (time.perf_counter() - began) / task.steps
    metrics = engine.metrics()
    peak = torch.cuda.max_memory_allocated() if cuda else _resident()
    engine.spans = {}
    engine.train_step(inputs, targets)
    spans = {short: engine.spans.get(long, 0.0) for short, long in PHASES.items()}
    engine.spans = None
    if task.profile:
        profile(engine, inputs, targets, Path(task.profile) / name)
    size = sum(p.numel() for p in engine.model.parameters())
    head = engine.model.lm_head.weight.numel()
    through = metrics["tokens/forward"] * metrics["tokens/useful_share"]
    done = 6 * ((size - head) * through + head * metrics["tokens/trained"])
    return {
        "row": name,
        "tokens_per_s": sum(r.num_tokens for r in rows) / seconds,
        "forward_tokens_per_s": through / seconds,
        "mfu": 6 * size * through / seconds / task.peak if task.peak else None,
        "mfu_done": done / seconds / task.peak if task.peak else None,
        "parameters": size,
        "step_s": seconds,
        "queue_s": metrics["time/queue_s"],
        "first_s": first,
        "peak_gib": peak / 2**30,
        "spans": spans,
        "head_s": _head(engine, bins, int(metrics["tokens/trained"]) // bins),
        "useful_share": metrics["tokens/useful_share"],
        "micro_batches": bins,
        "grad_norm": norm,
        "loss": loss,
    }


def _head(engine: TitanEngine, bins: int, tokens: int) -> float:
    """Seconds of the head alone, forward and backward, for a step's micro-batches."""
    weight = engine.model.lm_head.weight.detach().clone().requires_grad_()
    hidden = torch.randn(tokens, weight.shape[1], device=engine.device, dtype=weight.dtype, requires_grad=True)
    ids = torch.randint(len(weight), (tokens,), device=engine.device)
    seconds = 0.0
    for _ in range(2):
        weight.grad = hidden.grad = None
        _wait(engine.device)
        began = time.perf_counter()
        found, _entropy = linear_logprobs(
            hidden, weight, ids, 1.0, engine.config.logprob_block, True,
            keep_bytes=engine.config.keep_logits * 2**20, fuse=engine.config.compile_head,
        )  # fmt: skip
        found.sum().backward()
        _wait(engine.device)
        seconds = time.perf_counter() - began
    return seconds * bins


def profile(engine: TitanEngine, inputs: Any, targets: Any, out: Path) -> None:
    """A step under torch's profiler: `<row>.txt`, operations by device time, and `<row>.json`, a trace."""
    from torch.profiler import ProfilerActivity

    cuda = engine.device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=kinds) as found:
        engine.train_step(inputs, targets)
    out.parent.mkdir(parents=True, exist_ok=True)
    key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    text = found.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=70)
    out.with_suffix(".txt").write_text(text, encoding="utf-8")
    found.export_chrome_trace(str(out.with_suffix(".json")))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _resident() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
