"""Four GPUs, one script: torchforge's distributed workflow, gradients, asynchrony, weight sync, a dead replica.

    python contrib/bench/multi_gpu.py --out /tmp/multi-gpu            # all rows, a short table last
    python contrib/bench/multi_gpu.py --rows gradients loop
    python contrib/bench/multi_gpu.py --dry-run                       # placement on four GPUs that need not be there
    python contrib/bench/multi_gpu.py --rows gradients --cpu          # two gloo processes, a tiny model

fsdp, tensor, seed   20 steps: trainer on 2 GPUs (FSDP, then tensor parallel) beside vLLM on 2; then torchforge's own
                     configuration, trainer 2 x 2 on 4 GPUs and vLLM's 2 on two of them
gradients            one batch on 1 GPU, FSDP 2, tensor and context parallel 2: at most 1e-5 apart in float32, 1e-2 in
                     bfloat16
loop                 an asynchronous step over the larger of generation and training alone: at most 1.2
broadcast            NCCL's own broadcast of the model's bytes, in GB/s; sync of the fsdp row over it: at least 60%
kill                 one of two generator replicas is killed at the third step; the run finishes

Weights are random, in the shape of Qwen3-1.7B, with SmolLM2's tokenizer. Every row is a process with a deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = {"fsdp": 420, "tensor": 420, "seed": 420, "gradients": 300, "loop": 420, "broadcast": 120, "kill": 420}
TWO = {"procs": 2, "with_gpus": True}
ROWS: list[str] = []


def say(text: str) -> None:
    ROWS.append(text)
    print(f"RESULT {text}", flush=True)


def model(out: Path, shape: str) -> str:
    """Random weights of the shape, with SmolLM2's tokenizer."""
    from forge_plugin_smollm2.model import SmolLM2
    from forge_plugin_titan.shapes import random_model

    device = "cpu" if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else "cuda"
    path, tokenizer = Path(random_model(out / f"random-{shape}", shape, device)), Path(SmolLM2().local_path())
    ids = json.loads((tokenizer / "config.json").read_text())
    config = json.loads((path / "config.json").read_text())
    config |= {key: ids[key] for key in ("bos_token_id", "eos_token_id")}
    (path / "config.json").write_text(json.dumps(config))
    for file in (*tokenizer.glob("tokenizer*"), *tokenizer.glob("*token*.json"), *tokenizer.glob("chat_template*")):
        shutil.copyfile(file, path / file.name)
    return str(path)


def configuration(row: str, model: str, steps: int) -> dict[str, Any]:
    """The run of a row; `seed` is torchforge's third workflow with its generator on the trainer's GPUs."""
    trainer, generator = dict(TWO), dict(TWO)
    parallelism: dict[str, int] = {"data_parallel_shard_degree": 2}
    if row == "tensor":
        parallelism = {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 1}
    if row == "seed":
        parallelism = {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 2}
        trainer["procs"] = 4
        generator["colocate_with"] = "trainer"
    if row == "kill":
        generator = {"procs": 1, "num_replicas": 2, "with_gpus": True}
    return {
        "name": row, "model": model, "rewards": ["math"], "dataset": {"path": "arithmetic"},
        "grpo": {"n_samples": 8, "beta": 0.0, "max_tokens": 256},
        "training": {"batch_size": 32, "max_steps": steps, "seq_len": 1024, "max_policy_age": 1},
        "generator": {"gpu_memory_utilization": 0.35 if row == "seed" else 0.8},
        "parallelism": parallelism, "services": {"trainer": trainer, "generator": generator},
        "checkpoint": {"export": False},
    }  # fmt: skip


def forge_host(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forge_host.cli.main", *arguments]


def command(row: str, args: argparse.Namespace) -> list[str]:
    """What a row runs."""
    if row in ("gradients", "broadcast"):
        parts = str(Path(__file__).with_name("multi_gpu_parts.py"))
        return [sys.executable, parts, row, "--out", str(args.out), "--shape", args.shape, *(["--cpu"] * args.cpu)]
    folder = "smollm2" if args.dry_run else model(args.out, args.shape)
    file = args.out / f"{row}.json"
    file.write_text(json.dumps(configuration("fsdp" if row == "loop" else row, folder, args.steps)))
    if row == "loop":
        return forge_host("bench", "loop", str(file), "--steps", "6", "--run-dir", str(args.out / row), "--json")
    found = forge_host("run", str(file), "--run-dir", str(args.out / row))
    if row == "kill":
        from forge_host.testing import faults

        found += ["--plugin-file", str(faults.__file__)]
    return [*found, *(["--dry-run"] * args.dry_run)]


def run(row: str, args: argparse.Namespace) -> str:
    """The row's output; what went wrong is said and raised."""
    env = dict(os.environ)
    if args.dry_run:
        env["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
    if row == "kill":
        env["FORGE_FAULTS"] = "kill generator-1 at trainer.train_step#3"
    log = args.out / f"{row}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command(row, args), env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | str = process.wait(LIMIT_S[row])
        except subprocess.TimeoutExpired:
            code = f"not done after {LIMIT_S[row]} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
        except ProcessLookupError:
            pass
        process.wait()
    text = log.read_text(errors="replace")
    if code:
        raise RuntimeError(f"({code}) " + " | ".join(text.strip().splitlines()[-3:])[-500:])
    return text


def steps_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def mean(steps: list[dict[str, float]], key: str) -> float:
    late = [m[key] for m in steps[2:] if key in m]  # the first two compile and fill
    return sum(late) / len(late) if late else float("nan")


def report(row: str, text: str, args: argparse.Namespace) -> None:
    """One or more lines of the table."""
    if args.dry_run:  # of the plan, the table of processes
        table = text[text.index("processes ") :].split("\n\n")[0].splitlines()[2:]
        say(f"{row}: fits; " + "; ".join(" ".join(line.split()) for line in table))
    elif row in ("gradients", "broadcast"):
        for line in text.splitlines():
            if line.startswith("RESULT "):
                say(line.removeprefix("RESULT "))
    elif row == "loop":
        found = json.loads(text.strip().splitlines()[-1])
        say(
            f"loop: generation {found['generation_s']:.2f} s, training {found['training_s']:.2f} s, asynchronous step "
            f"{found['async_step_s']:.2f} s = {found['async_over_larger']:.2f} of the larger (at most 1.2), "
            f"synchronous {found['sync_step_s']:.2f} s = {found['sync_over_sum']:.2f} of the sum"
        )
    else:
        steps = steps_of(args.out / row)
        ages = max(m.get("policy_age/max", 0.0) for m in steps)
        say(
            f"{row}: {len(steps)} steps, step {mean(steps, 'time/step_s'):.2f} s, "
            f"train {mean(steps, 'time/train_s'):.2f} s, waiting for rollouts "
            f"{mean(steps, 'time/generate_s'):.2f} s, sync {mean(steps, 'time/sync_s'):.2f} s, "
            f"oldest token {ages:.0f} versions (at most 1)"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("/tmp/multi-gpu"))
    parser.add_argument("--rows", nargs="+", choices=list(LIMIT_S), default=list(LIMIT_S))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--shape", default=None, help="shape of the weights [1.7B; tiny with --cpu]")
    parser.add_argument("--cpu", action="store_true", help="gradients and broadcast with gloo processes")
    parser.add_argument("--dry-run", action="store_true", help="place every run on four GPUs, start nothing")
    args = parser.parse_args()
    args.shape = args.shape or ("tiny" if args.cpu else "1.7B")
    args.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for row in args.rows:
        if args.dry_run and row in ("gradients", "broadcast", "loop"):
            continue
        began = time.perf_counter()
        try:
            report(row, run(row, args), args)
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            say(f"{row}: FAILED {error}")
            failed += 1
        print(f"{row} took {time.perf_counter() - began:.0f} s", flush=True)
    print("\n".join(["", "== table", *ROWS]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
