"""The rows of multi_gpu.py that are no runs: gradients under different splits, and NCCL's own broadcast.

python contrib/bench/multi_gpu_parts.py gradients --out /tmp/multi-gpu --shape tiny --cpu
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

#: split: ParallelismConfig's keys, processes
SPLITS: dict[str, tuple[dict[str, int], int]] = {
    "one": ({}, 1), "fsdp 2": ({"data_parallel_shard_degree": 2}, 2),
    "tensor 2": ({"tensor_parallel_degree": 2, "data_parallel_shard_degree": 1}, 2),
    "context 2": ({"context_parallel_degree": 2, "data_parallel_shard_degree": 1}, 2),
}  # fmt: skip
LIMITS = {"float32": 1e-5, "bfloat16": 1e-2}


def join(rank: int, world: int, port: int, device: str) -> torch.device:
    """This process's place in a group of `world`."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    from forge_plugin_titan.device import prepare

    return prepare(device, timeout_s=120)


def gradients(rank: int, split: str, port: int, device: str, model: str, out: str) -> None:
    """Whole gradients of one batch, in float32 and bfloat16; rank 0 saves them."""
    degrees, world = SPLITS[split]
    where = join(rank, world, port, device)
    from forge_plugin_titan.bench import Task
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.engine import TitanEngine
    from forge_plugin_titan.measure import data, weighted

    from forge_host.config.schema import ParallelismConfig, TrainingConfig
    from forge_host.loop.batch import make_batches
    from forge_host.rl import Objective

    for dtype in LIMITS:
        training = TrainingConfig(dtype=dtype, seq_len=256)
        config = TitanConfig(fuse_qkv=False)
        engine = TitanEngine(config, model, training, ParallelismConfig(**degrees), Objective(weighted), device=where)
        task = Task(model=model, tokens=2048, prompt=64, response=64, device=device)
        inputs, targets = make_batches(data(task, engine.spec.vocab_size), 2)
        found: dict[str, torch.Tensor] = {}
        assert engine.optimizer is not None
        optimizer = engine.optimizer

        def take(*_: Any, found: dict[str, torch.Tensor] = found, optimizer: Any = optimizer) -> torch.Tensor:
            for name, master in optimizer.masters.items():
                grad = master.grad
                found[name] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).float().cpu()
            return torch.zeros(())

        optimizer.clip = take  # type: ignore[method-assign]
        engine.train_step(inputs, targets)
        if rank == 0:
            torch.save(found, Path(out) / f"gradients-{split.replace(' ', '')}-{dtype}.pt")
        del engine, optimizer
        if where.type == "cuda":
            torch.cuda.empty_cache()
    if dist.is_initialized():
        dist.destroy_process_group()


def compare(out: Path) -> None:
    for dtype, limit in LIMITS.items():
        one = torch.load(out / f"gradients-one-{dtype}.pt")
        for split in list(SPLITS)[1:]:
            other = torch.load(out / f"gradients-{split.replace(' ', '')}-{dtype}.pt")
            difference = sum(float((other[n] - g).double().pow(2).sum()) for n, g in one.items()) ** 0.5
            size = sum(float(g.double().pow(2).sum()) for g in one.values()) ** 0.5
            verdict = "ok" if difference <= limit * size else "TOO FAR"
            print(f"RESULT gradients {split}, {dtype}: relative difference {difference / size:.1e} "
                  f"(at most {limit:g}) {verdict}", flush=True)  # fmt: skip


def broadcast(rank: int, port: int, device: str, size: int) -> None:
    where = join(rank, 2, port, device)
    one = torch.empty(size, dtype=torch.uint8, device=where)
    times = []
    for _ in range(6):
        dist.barrier()
        began = time.perf_counter()
        dist.broadcast(one, 0)
        if where.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if rank == 0:
        best = min(times[1:])
        print(f"RESULT broadcast of {size / 1e9:.2f} GB by {dist.get_backend()}: {best:.3f} s, {size / best / 1e9:.1f} "
              "GB/s; compare time/sync_s of the runs", flush=True)  # fmt: skip
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("row", choices=("gradients", "broadcast"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="1.7B")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    from forge_plugin_titan.shapes import random_model

    device = "cpu" if args.cpu else "cuda"
    args.out.mkdir(parents=True, exist_ok=True)
    model = random_model(args.out / f"random-{args.shape}", args.shape, device)
    if args.row == "broadcast":
        size = (Path(model) / "model.safetensors").stat().st_size
        mp.spawn(broadcast, (free_port(), device, size), nprocs=2)
        return
    for split, (_, world) in SPLITS.items():
        mp.spawn(gradients, (split, free_port(), device, model, str(args.out)), nprocs=world)
    compare(args.out)


if __name__ == "__main__":
    main()
