"""The trainer alone: tokens per second, MFU, memory and where a step's time goes, one row a way of computing.

    for row in bench(shape="0.6B", rows=["varlen-16k"]): print(row)

Rows train on the same data, the mixed ones apart, so `grad_norm` must agree over them. They run in a process of their
own that is started again when one of them kills it. MFU counts 6 N floating-point operations for every token that goes
through the model, filling left out; N is every parameter, a tied embedding once (as the head). `mfu_done` counts the
head only where a response token is predicted, which is what is computed.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from forge_host.errors import UsageError
from forge_plugin_titan.config import TitanConfig

#: Row: (TitanConfig, TrainingConfig) settings. `micro` is training.micro_batch_tokens in thousands.
Settings = Mapping[str, Any]


def _row(
    micro: int, *, compile: bool = True, mixed: bool = False, training: Settings | None = None, **titan: Any
) -> dict[str, Settings]:
    """`mixed`: responses of any length up to the task's, so that micro-batches differ in length."""
    return {
        "titan": {"share_prompts": False, **titan},
        "training": {"micro_batch_tokens": micro * 1024, "compile": compile, **(training or {})},
        "data": {"mixed": mixed},
    }


#: First those that decide, so that a time limit costs the least.
CUDA_ROWS: dict[str, dict[str, Settings]] = {
    "flex-16k": _row(16, attention="flex"),
    "varlen-16k": _row(16, attention="varlen"),
    "varlen-4k": _row(4, attention="varlen"),
    "flex-4k": _row(4, attention="flex"),
    "varlen-32k": _row(32, attention="varlen"),
    "varlen-16k-eager": _row(16, attention="varlen", compile=False),
    "flex-4k-eager-plain-head": _row(4, attention="flex", compile=False, compile_head=False, keep_logits=0),
    "varlen-16k-plain-head": _row(16, attention="varlen", compile_head=False),
    "varlen-16k-keep-0": _row(16, attention="varlen", keep_logits=0),
    "varlen-16k-keep-8g": _row(16, attention="varlen", keep_logits=8192),
    "varlen-16k-block-8k": _row(16, attention="varlen", logprob_block=8192),
    "varlen-16k-block-32k": _row(16, attention="varlen", logprob_block=32768),
    "varlen-64k": _row(64, attention="varlen"),
    "varlen-16k-mixed": _row(16, attention="varlen", mixed=True),
    "flex-16k-mixed": _row(16, attention="flex", mixed=True),
    "varlen-16k-shared": _row(16, attention="varlen", share_prompts=True),
    "flex-16k-shared": _row(16, attention="flex", share_prompts=True),
    "sdpa-4k-eager": _row(4, attention="sdpa", compile=False),
    "varlen-16k-recompute": _row(16, attention="varlen", training={"gradient_checkpointing": True}),
    "varlen-16k-lora": _row(16, attention="varlen", lora_rank=16),
    "varlen-16k-offload": _row(16, attention="varlen", cpu_offload=True),
}
CPU_ROWS: dict[str, dict[str, Settings]] = {
    "shared": _row(16, compile=False, share_prompts=True),
    "unshared": _row(16, compile=False),
    "shared-keep-0": _row(16, compile=False, share_prompts=True, keep_logits=0),
    "shared-mixed": _row(16, compile=False, share_prompts=True, mixed=True),
    "shared-2k": _row(2, compile=False, share_prompts=True),
    "shared-unfused-qkv": _row(16, compile=False, share_prompts=True, fuse_qkv=False),
    "shared-lora": _row(16, compile=False, share_prompts=True, lora_rank=16),
}


@attrs.frozen(kw_only=True)
class Task:
    """What every row trains on.

    Args:
        model: Hugging Face folder.
        tokens: packed row tokens of a step.
        prompt, response: tokens of each; `group` responses share a prompt.
        steps, warmup: timed steps, and those before.
        device: "cuda" or "cpu".
        peak: dense bfloat16 operations per second of the device, for MFU; None prints none.
        profile: folder for profiler tables and traces.
    """

    model: str
    tokens: int
    prompt: int = 128
    response: int = 384
    group: int = 8
    steps: int = 4
    warmup: int = 3
    device: str = "cuda"
    peak: float | None = None
    profile: str | None = None


def rows_for(device: str, names: Sequence[str] = ()) -> dict[str, dict[str, Settings]]:
    """The rows of a device, or those named.

    Raises:
        UsageError: an unknown name.
    """
    known = CUDA_ROWS if device == "cuda" else CPU_ROWS
    for name in names:
        if name not in known:
            raise UsageError(f"no row `{name}`", where="--rows", fix=f"known for {device}: {', '.join(known)}")
    return {name: known[name] for name in names} if names else known


def bench(task: Task, names: Sequence[str] = (), row_timeout_s: float = 240.0) -> Iterator[dict[str, Any]]:
    """Measure rows; each gives a dict of figures, or `row` and `error`.

    Args:
        row_timeout_s: a row that takes longer, compilation included, is given up.
    """
    left = list(rows_for(task.device, names))
    while left:
        with _Worker(task, left) as worker:
            while left:
                found = worker.next(row_timeout_s)
                name = left.pop(0)
                yield found if "row" in found else {"row": name, **found}
                if found.get("fatal"):
                    break


class _Worker:
    """A process that measures rows and prints one JSON line for each."""

    def __init__(self, task: Task, rows: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed on exit
        argument = json.dumps({"task": attrs.asdict(task), "rows": list(rows)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forge_plugin_titan.bench", argument], stdout=subprocess.PIPE, stderr=self._errors,
            text=True, env={**os.environ, **_environment(task.device)},
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next(self, timeout_s: float) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                return {"error": f"took longer than {timeout_s:.0f} s", "fatal": True}
            if line is None:
                self._errors.seek(0)
                last = self._errors.read().strip().splitlines()[-1:] or ["no message"]
                return {"error": f"its process ended: {last[0]}", "fatal": True}
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()


def _environment(device: str) -> dict[str, str]:
    from forge_plugin_titan.actor import cpu_environment

    return cpu_environment() if device == "cpu" else {}


def _serve(argument: str) -> None:
    given = json.loads(argument)
    task = Task(**given["task"])
    rows = rows_for(task.device, given["rows"])
    from forge_plugin_titan.measure import measure

    for name, settings in rows.items():
        try:
            found = measure(task, name, settings)
        except Exception as error:  # noqa: BLE001 - one row's failure is its result
            text = str(error).strip().splitlines()[:1] or [""]
            found = {"row": name, "error": f"{type(error).__name__}: {text[0][:300]}"}
            if "CUDA error" in str(error) or "illegal memory" in str(error):
                found["fatal"] = True
        print(json.dumps(found), flush=True)
        if found.get("fatal"):
            return
        gc.unfreeze()  # what the row's compilation has left can go
        gc.collect()


def titan_config(settings: Mapping[str, Settings]) -> TitanConfig:
    return TitanConfig(**settings["titan"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as text; seconds of a step by phase, phases measured one after another with the device waited for."""
    head = f"{'row':26} {'tokens/s':>9} {'MFU':>6} {'done':>6} {'GiB':>6} {'step':>7} {'queue':>6} {'forw':>6} "
    head += f"{'head':>6} {'loss':>6} {'backw':>6} {'optim':>6} {'pack':>6} {'first':>6} {'grad norm':>10}"
    out = [head]
    for row in rows:
        if "error" in row:
            out.append(f"{row['row']:26} {row['error']}")
            continue
        s = row["spans"]
        share = lambda value: "-" if value is None else f"{value:.1%}"  # noqa: E731
        out.append(
            f"{row['row']:26} {row['tokens_per_s']:9,.0f} {share(row['mfu']):>6} {share(row['mfu_done']):>6} "
            f"{row['peak_gib']:6.1f} {row['step_s']:7.3f} {row['queue_s']:6.3f} {s['forward']:6.3f} "
            f"{row['head_s']:6.3f} {s['loss']:6.3f} {s['backward']:6.3f} {s['optimizer']:6.3f} {s['packing']:6.3f} "
            f"{row['first_s']:6.1f} {row['grad_norm']:10.5f}"
        )
    return "\n".join(out)


def model_folder(shape: str, device: str) -> str:
    """A folder of random weights in the machine's temporary directory, made once."""
    from forge_plugin_titan.shapes import SHAPES, random_model

    if shape not in SHAPES:
        raise UsageError(f"no shape `{shape}`", where="--shape", fix=f"known: {', '.join(SHAPES)}")
    user = os.getuid() if hasattr(os, "getuid") else 0
    return random_model(Path(tempfile.gettempdir()) / f"forge-host-{user}" / f"random-{shape}", shape, device)


if __name__ == "__main__":
    _serve(sys.argv[1])
