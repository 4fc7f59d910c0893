"""One GPU, one script: weight sync to vLLM through each transport, and what it costs; a short table last.

    python contrib/bench/gpu_sync.py --out /tmp/gpu-sync
    python contrib/bench/gpu_sync.py --rows vllm:cuda-ipc generate

Every row runs in a process of its own with a deadline, so one that fails or hangs costs only itself. `--cpu` runs what
can be run without a GPU, with small sizes, to try the script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from gpu_sync_common import CPU, device, model_folder, say, tensors, timed
from gpu_sync_moves import moves, safe
from gpu_sync_vllm import trainers_environment, vllm

ROWS = {
    "copy": 120, "moves:cuda-ipc": 180, "moves:shm": 180, "safe:cuda-ipc": 180, "vllm:cuda-ipc": 420, "vllm:shm": 420,
    "loop": 420, "loop:sleep": 420, "generate": 600, "nccl": 180,
}  # fmt: skip


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


# --- loop, generate, nccl ---------------------------------------------------------------------------------------------


def forge_host(*arguments: str, log: Path, timeout: int) -> str:
    command = [sys.executable, "-m", "forge_host.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"forge-host {arguments[0]} ended with {done.returncode}: {done.stderr[-600:]}")
    return done.stdout + done.stderr


def loop(out: Path, mode: str = "") -> None:
    """The quickstart as it is, or with a generator that sleeps while the trainer trains."""
    run_dir = out / f"loop{mode}"
    settings = ["training.max_steps=8", "training.verify_weight_sync=false"]
    if mode == "sleep":
        settings += ["generator.sleep_between_steps=true"]
    sets = [argument for setting in settings for argument in ("--set", setting)]
    log = out / f"loop{mode}.log"
    text = forge_host("run", "quickstart", "--run-dir", str(run_dir), *sets, log=log, timeout=400)
    for line in text.splitlines():
        if "transport" in line and "chosen" in line:
            say(f"loop {mode}: {line.strip()[-200:]}")
    metrics = [json.loads(line)["metrics"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for name in ("time/step_s", "time/sync_s", "time/sync_pause_s"):
        found = [m[name] for m in metrics if name in m]
        say(f"loop {mode} (quickstart) {name}, ms: {[round(x * 1e3, 1) for x in found]}")


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
    moves(out, "nccl")  # publishes on GPU 0, reads on GPU 1


WORK = {"copy": copy, "moves": moves, "safe": safe, "vllm": vllm, "loop": loop, "generate": generate, "nccl": nccl}


def run_row(row: str, out: Path, log: Path, seconds: int) -> list[str]:
    """The row's results; what went wrong as one more."""
    command = [sys.executable, str(Path(__file__).resolve()), "--out", str(out), "--row", row]
    given = dict(os.environ)
    if row.startswith("vllm:"):  # read when Python starts
        given |= trainers_environment("cpu" if given.get("GPU_SYNC_CPU") == "1" else "cuda")
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=given)
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
    parser.add_argument("--model", help="Hugging Face folder in place of Qwen3-0.6B's shape")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model:
        os.environ["GPU_SYNC_MODEL"] = args.model
    if args.cpu:
        os.environ["GPU_SYNC_CPU"] = "1"
    if args.row:
        name, _, transport = args.row.partition(":")
        WORK[name](args.out, *([transport] if transport else []))
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
