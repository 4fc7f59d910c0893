"""`forge-host bench train`: the TorchTitan trainer alone, one row a way of computing.

forge-host bench train --shape 0.6B --json
"""

from __future__ import annotations

import json
from importlib import util

import click

from forge_host.errors import UsageError


@click.command()
@click.option("--shape", help="Random weights of this shape: tiny, 135M, 0.6B, 1.7B. [0.6B on a GPU, else 135M]")
@click.option("--model", metavar="FOLDER", help="A Hugging Face folder instead of a shape.")
@click.option("--rows", default="", metavar="A,B", help="Rows to measure. [all]")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="[cuda when torch sees a GPU]")
@click.option("--tokens", type=click.IntRange(2), help="Row tokens of a step. [65536 on a GPU, else 6912]")
@click.option("--prompt", default=None, type=click.IntRange(1), help="Tokens of a prompt. [128, on CPU 120]")
@click.option("--response", default=None, type=click.IntRange(1), help="Tokens of a response. [384, on CPU 96]")
@click.option("--steps", default=4, type=click.IntRange(1), help="Timed steps.", show_default=True)
@click.option("--warmup", default=3, type=click.IntRange(1), help="Steps before them.", show_default=True)
@click.option("--peak", type=float, help="Dense bfloat16 TFLOP/s, for MFU. [790 on a GPU]")
@click.option("--row-timeout", default=240.0, help="Seconds after which a row is given up.", show_default=True)
@click.option("--profile", metavar="DIR", help="Also profile a step of every row into DIR.")
@click.option("--json", "as_json", is_flag=True, help="One last line of JSON.")
def train(
    shape: str | None, model: str | None, rows: str, device: str | None, tokens: int | None, prompt: int | None,
    response: int | None, steps: int, warmup: int, peak: float | None, row_timeout: float, profile: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Tokens per second, MFU, memory and phases of the trainer; rows differ in attention, compilation and sizes."""
    if util.find_spec("forge_plugin_titan") is None:
        raise UsageError("bench train needs the titan trainer", fix="pip install forge-plugin-titan")
    import torch
    from forge_plugin_titan import bench

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise UsageError("torch sees no GPU", where="--device", fix="use --device cpu")
    names = [name for name in rows.split(",") if name]
    bench.rows_for(device, names)
    peak = peak or (790.0 if cuda else None)
    task = bench.Task(
        model=model or bench.model_folder(shape or ("0.6B" if cuda else "135M"), device),
        tokens=tokens or (65536 if cuda else 6912),
        prompt=prompt or (128 if cuda else 120),
        response=response or (384 if cuda else 96),
        steps=steps, warmup=warmup, device=device, peak=peak * 1e12 if peak else None, profile=profile,
    )  # fmt: skip
    found = []
    for row in bench.bench(task, names, row_timeout):
        found.append(row)
        print(bench.table([row]) if len(found) == 1 else bench.table([row]).splitlines()[-1], flush=True)
    if as_json:
        print(json.dumps({"device": device, "model": task.model, "tokens": task.tokens, "rows": found}))
