"""One GPU, one script: weight sync to vLLM through each transport, and what it costs; a short table last.

    python contrib/bench/gpu_sync.py --out /tmp/gpu-sync
    python contrib/bench/gpu_sync.py --rows vllm:cuda-ipc generate

Every row runs in a process of its own with a deadline, so one that fails or hangs costs only itself. `--cpu` runs what
can be run without a GPU, with small sizes, to try the script.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CPU = os.environ.get("GPU_SYNC_CPU") == "1"
REPO = Path(__file__).resolve().parents[2]
HOST_IPC = f"{REPO}/plugins/forge-plugin-cuda-ipc/tests/host_ipc.py:HostIpc"
TRANSPORTS = {
    "cuda-ipc": HOST_IPC if CPU else "forge_plugin_cuda_ipc.transport:CudaIpc",
    "shm": "forge_host.builtin.transports.shm:SharedMemory",
    "nccl": "forge_plugin_nccl.transport:Nccl",
}
ROWS = {
    "copy": 120, "moves:cuda-ipc": 180, "moves:shm": 180, "safe:cuda-ipc": 180, "vllm:cuda-ipc": 420, "vllm:shm": 420,
    "loop": 420, "generate": 600, "nccl": 180,
}  # fmt: skip


def say(text: str) -> None:
    print(f"RESULT {text}", flush=True)


def device() -> str:
    return "cpu" if CPU else "cuda"


def wait() -> None:
    import torch

    if not CPU:
        torch.cuda.synchronize()


def timed(work: Any, repeats: int = 10) -> float:
    """Median seconds, the device waited for."""
    times = []
    for _ in range(repeats + 2):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def tensors(fill: float = 0.5) -> dict[str, Any]:
    from forge_host.loop.bench_sync import model_tensors

    return {name: t.to(device()).fill_(fill) for name, t in model_tensors("135M" if CPU else "0.6B").items()}


def build(transport: str) -> Any:
    from forge_host.plugins import PluginHost
    from forge_host.types import Use

    made = PluginHost.load().build("transport", Use(TRANSPORTS[transport]))
    made.open("gpu-sync")
    return made


# --- copy: what the memory can do -------------------------------------------------------------------------------------


def copy(out: Path) -> None:
    import torch

    first, second = tensors(), tensors()
    size = sum(t.nbytes for t in first.values())
    one = torch.empty(size, dtype=torch.uint8, device=device())
    other = torch.empty_like(one)
    whole = timed(lambda: other.copy_(one))
    each = timed(lambda: torch._foreach_copy_(list(second.values()), list(first.values())))
    say(f"copy on the device, {size / 1e9:.2f} GB: {whole * 1e3:.2f} ms ({size / whole / 1e9:.0f} GB/s), "
        f"{len(first)} tensors by foreach {each * 1e3:.2f} ms")  # fmt: skip
    (out / "copy.json").write_text(json.dumps({"s": whole, "bytes": size}))
    if not CPU:
        host = torch.empty(size, dtype=torch.uint8)
        pageable = timed(lambda: one.copy_(host), 3)
        pinned = host.pin_memory()
        say(f"host to device: pageable {size / pageable / 1e9:.1f} GB/s, "
            f"page-locked {size / timed(lambda: one.copy_(pinned, non_blocking=True), 3) / 1e9:.1f} GB/s")  # fmt: skip


# --- moves: publish here, fetch and copy in another process -----------------------------------------------------------


def reader(pipe: Any, transport: str, cpu: bool) -> None:
    global CPU
    CPU = cpu
    import torch

    own = tensors(0)
    wait()
    mine = build(transport)
    pipe.send("ready")
    while (receipt := pipe.recv()) is not None:
        began = time.perf_counter()
        fetched = mine.fetch(receipt)
        held = dict(fetched)
        if all(held[name].device == own[name].device for name in own):
            torch._foreach_copy_([own[name] for name in own], [held[name] for name in own])
        else:
            for name, tensor in own.items():
                tensor.copy_(held[name], non_blocking=True)
        wait()
        seconds = time.perf_counter() - began
        pipe.send((seconds, all(bool((t == receipt.version).all()) for t in own.values())))
    mine.close()


def moves(out: Path, transport: str) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=reader, args=(there, transport, CPU), daemon=True)
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
        process = context.Process(target=target, args=(there, transport, CPU, *more), daemon=True)
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


def free_bytes() -> int:
    import torch

    return 0 if CPU else int(torch.cuda.mem_get_info()[0])


def digests(pipe: Any, transport: str, cpu: bool) -> None:
    global CPU
    CPU = cpu
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


def publisher(pipe: Any, transport: str, cpu: bool) -> None:
    global CPU
    CPU = cpu
    import torch

    mine = build(transport)
    pipe.send(mine.publish(1, [("a", torch.ones(1000, device=device()))]))
    time.sleep(60)


# --- vllm: from the trainer's weights to vLLM serving them ------------------------------------------------------------


def model_folder(out: Path) -> str:
    """Qwen3-0.6B's shape with random weights (`--cpu`: a small one)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    path = out / ("qwen3-small" if CPU else "qwen3-0.6b-random")
    if (path / "model.safetensors").exists():
        return str(path)
    size = (dict(vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=64) if CPU else
            dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                 num_attention_heads=16, num_key_value_heads=8, head_dim=128))  # fmt: skip
    config = Qwen3Config(**size, max_position_embeddings=8192, rope_theta=1e6, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device(device()):
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return str(path)


def generator(pipe: Any, transport: str, cpu: bool, folder: str) -> None:
    """The generator's process: vLLM behind a pipe."""
    global CPU
    CPU = cpu
    from types import SimpleNamespace

    from forge_plugin_vllm.config import VLLMConfig
    from forge_plugin_vllm.environment import environment

    from forge_host.config.schema import ServiceConfig

    config = VLLMConfig(gpu_memory_utilization=None if cpu else 0.4)
    services = SimpleNamespace(services={"generator": ServiceConfig()})
    os.environ |= environment(config, SimpleNamespace(device=device(), role="generator", config=services))
    try:
        asyncio.run(serve(pipe, config, transport, folder))
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
    child = context.Process(target=generator, args=(there, transport, CPU, folder))
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
        idle = [sync(version) for version in range(4, 12)]
        ask("busy", 4 if CPU else 32)
        loaded = [sync(version) for version in range(12, 20)]
        how = ask("idle")
    finally:
        here.send(None)
        child.join(30)
        if child.is_alive():
            child.kill()
    mine.close()
    say(f"vLLM by {transport}: first update {first[1] * 1e3:.0f} ms; from then on {how!r}")
    for name, found in (("idle", idle), ("256 sequences in flight", loaded)):
        p, whole, pause = (statistics.median(x[i] for x in found) * 1e3 for i in range(3))
        say(f"vLLM by {transport}, {name}: trainer's weights to vLLM serving them {whole:.1f} ms "
            f"(max {max(x[1] for x in found) * 1e3:.1f}), publish {p:.1f} ms, pause {pause:.1f} ms")  # fmt: skip
    say(f"vLLM by {transport}: " + ", ".join(f"{name} {'ok' if right else 'FAILED'}" for name, right in checks.items()))


# --- loop, generate, nccl ---------------------------------------------------------------------------------------------


def forge_host(*arguments: str, log: Path, timeout: int) -> str:
    command = [sys.executable, "-m", "forge_host.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"forge-host {arguments[0]} ended with {done.returncode}: {done.stderr[-600:]}")
    return done.stdout + done.stderr


def loop(out: Path) -> None:
    run_dir = out / "loop"
    text = forge_host("run", "quickstart", "--run-dir", str(run_dir), "--set", "training.max_steps=8",
                      "--set", "training.verify_weight_sync=false", log=out / "loop.log", timeout=400)  # fmt: skip
    for line in text.splitlines():
        if "transport" in line and "chosen" in line:
            say(f"loop: {line.strip()[-200:]}")
    metrics = [json.loads(line)["metrics"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for name in ("time/sync_s", "time/sync_pause_s"):
        found = [m[name] for m in metrics if name in m]
        say(f"loop (quickstart) {name}, ms: {[round(x * 1e3, 1) for x in found]}")


def generate(out: Path) -> None:
    size = ("--sequences", "8", "--tokens", "16") if CPU else ("--sequences", "256", "--tokens", "512")
    text = forge_host("bench", "generate", "--model", model_folder(out), *size, log=out / "generate.log", timeout=580)
    for line in text.splitlines():
        if "tokens/s" in line or "ratio" in line:
            say(f"generate: {line.strip()}")


def nccl(out: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        say("nccl: one GPU only; it needs two")
        return
    moves(out, "nccl")


def run_row(row: str, out: Path, log: Path, seconds: int) -> list[str]:
    """The row's results; what went wrong as one more."""
    command = [sys.executable, str(Path(__file__).resolve()), "--out", str(out), "--row", row]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"not done after {seconds} s"
        try:
            os.killpg(process.pid, 9)  # whatever it left behind
        except ProcessLookupError:
            pass
        process.wait()
    lines = log.read_text(errors="replace").splitlines()
    results = [line[7:] for line in lines if line.startswith("RESULT ")]
    if code:
        tail = [line for line in lines if line.strip()][-4:]
        results.append(f"{row}: FAILED ({code}): " + " | ".join(tail)[-500:])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("/tmp/gpu-sync"))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.cpu:
        os.environ["GPU_SYNC_CPU"] = "1"
    if args.row:
        name, _, transport = args.row.partition(":")
        globals()[name](args.out, *([transport] if transport else []))
        return
    table: list[str] = []
    for row in args.rows:
        began = time.perf_counter()
        results = run_row(row, args.out, args.out / f"{row.replace(':', '-')}.log", ROWS[row])
        table += results
        print("\n".join([f"== {row} ({time.perf_counter() - began:.0f} s)", *results]), flush=True)
    print("\n".join(["", "== table", *table]))


if __name__ == "__main__":
    main()
