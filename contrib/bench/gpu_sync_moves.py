"""Rows of gpu_sync.py: publish here, fetch and copy in another process; and what the transport contract asks.

python contrib/bench/gpu_sync.py --rows moves:cuda-ipc safe:cuda-ipc
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

from gpu_sync_common import build, device, free_bytes, say, tensors, wait

# --- moves: publish here, fetch and copy in another process -----------------------------------------------------------


def reader(pipe: Any, transport: str) -> None:
    import torch

    if transport == "nccl":  # a GPU each
        torch.cuda.set_device(1)
    own = tensors(0)
    names, places = list(own), list(own.values())
    wait()
    mine = build(transport)
    pipe.send("ready")
    while (receipt := pipe.recv()) is not None:
        began = time.perf_counter()
        fetched = mine.fetch(receipt)
        held = list(islice(fetched, receipt.num_tensors))  # not to the end, which would end the lease
        sources = [tensor for _, tensor in held]
        if sources[0].device == places[0].device:
            torch._foreach_copy_(places, sources)
        else:
            for place, source in zip(places, sources, strict=True):
                place.copy_(source, non_blocking=True)
        wait()
        seconds = time.perf_counter() - began
        whole = [name for name, _ in held] == names and not list(fetched)
        pipe.send((seconds, whole and all(bool((t == receipt.version).all()) for t in places)))
    mine.close()


def moves(out: Path, transport: str) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=reader, args=(there, transport), daemon=True)
    child.start()
    there.close()
    assert here.recv() == "ready"
    mine, publish, fetch = build(transport), [], []
    for version in range(1, 13):
        given = tensors(version)
        wait()
        began = time.perf_counter()
        receipt = mine.publish(version, given.items())
        publish.append(time.perf_counter() - began)
        for tensor in given.values():
            tensor.fill_(-1)  # the trainer goes on at once
        here.send(receipt)
        seconds, right = here.recv()
        fetch.append(seconds)
        if not right:
            say(f"{transport}: WRONG tensors in version {version}")
    here.send(None)
    child.join(20)
    mine.close()
    p, f = statistics.median(publish[4:]), statistics.median(fetch[4:])
    noted = json.loads((out / "copy.json").read_text()) if (out / "copy.json").exists() else {"s": float("nan")}
    say(f"{transport}: publish {p * 1e3:.2f} ms, fetch and copy {f * 1e3:.2f} ms (first {publish[0] * 1e3:.0f} and "
        f"{fetch[0] * 1e3:.0f}), {receipt.num_bytes / (p + f) / 1e9:.0f} GB/s end to end; publish alone reaches "
        f"{noted['s'] / p:.0%} of the device copy's bandwidth, both copies {2 * noted['s'] / (p + f):.0%}")  # fmt: skip


# --- safe: what the contract asks, on the GPU -------------------------------------------------------------------------


def safe(_: Path, transport: str) -> None:
    import torch

    from forge_host.api import RunError
    from forge_host.testing.leftovers import Opened, resident_bytes

    kinds = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int64, torch.bool)
    odd = {str(k): torch.arange(-8, 8, device=device()).float().to(k).reshape(4, 4) for k in kinds}
    odd |= {"empty": torch.empty(0, 3, device=device()), "scalar": torch.tensor(3.5, device=device()),
            "transposed": torch.rand(300, 200, device=device()).t(), "strided": torch.rand(99, device=device())[::2],
            "expanded": torch.rand(2, 1, device=device()).expand(2, 5), "host": torch.rand(5)}  # fmt: skip
    context = multiprocessing.get_context("spawn")
    checks: list[str] = []

    def check(name: str, right: bool) -> None:
        checks.append(f"{name} {'ok' if right else 'FAILED'}")

    def child(target: Any, *more: Any) -> tuple[Any, Any]:
        here, there = context.Pipe()
        process = context.Process(target=target, args=(there, transport, *more), daemon=True)
        process.start()
        there.close()
        return here, process

    mine = build(transport)
    pipe, process = child(digests)
    from forge_host.loop.checksum import tensor_digest

    receipt = mine.publish(1, odd.items(), checksums=True)
    pipe.send(receipt)
    check("bitwise", pipe.recv() == receipt.checksums == {n: tensor_digest(t) for n, t in odd.items()})
    pipe.send(receipt)
    check("fetched twice", pipe.recv() == receipt.checksums)
    big = [mine.publish(v, [("a", torch.full((50_000_000,), float(v), device=device()))]) for v in (2, 3, 4)]
    pipe.send(big[0])
    check("old version refused", isinstance(pipe.recv(), RunError))
    pipe.send(("hold", big[1]))
    pipe.recv()
    for version in range(5, 10):
        newest = mine.publish(version, [("a", torch.full((50_000_000,), float(version), device=device()))])
    pipe.send("go on")
    check("leased version stays", pipe.recv() == 3.0)
    pipe.send(("hold", newest))
    pipe.recv()
    process.kill()
    process.join(10)
    for version in range(10, 14):
        newest = mine.publish(version, [("a", torch.full((50_000_000,), float(version), device=device()))])
    other, process = child(digests)
    other.send(newest)
    check("after a reader's death", isinstance(other.recv(), dict))
    dying, victim = child(publisher)
    receipt = dying.recv()
    victim.kill()
    victim.join(10)
    other.send(receipt)
    check("dead publisher named", isinstance(other.recv(), RunError))
    for version in range(100, 1300):
        if version == 200:
            wait()
            opened, resident, free = Opened(), resident_bytes(), free_bytes()
        other.send(mine.publish(version, [("a", torch.full((1000,), float(version), device=device()))]))
        other.recv()
    wait()
    check(f"1100 versions: {(resident_bytes() - resident) / 1e6:+.1f} MB host, {(free - free_bytes()) / 1e6:+.1f} MB "
          f"GPU, more files {opened.more()}", not opened.more() and free - free_bytes() < 64e6)  # fmt: skip
    other.send(None)
    process.join(10)
    mine.close()
    say(f"{transport} contract: " + "; ".join(checks))


def digests(pipe: Any, transport: str) -> None:
    from forge_host.api import RunError
    from forge_host.loop.checksum import tensor_digest

    mine = build(transport)
    while (asked := pipe.recv()) is not None:
        try:
            if isinstance(asked, tuple):
                fetched = mine.fetch(asked[1])
                _, tensor = next(fetched)
                pipe.send("holding")
                pipe.recv()
                pipe.send(float(tensor.max()))
                fetched.close()
            else:
                pipe.send({name: tensor_digest(tensor) for name, tensor in mine.fetch(asked)})
        except RunError as error:
            pipe.send(error)
    mine.close()


def publisher(pipe: Any, transport: str) -> None:
    import torch

    mine = build(transport)
    pipe.send(mine.publish(1, [("a", torch.ones(1000, device=device()))]))
    time.sleep(60)
