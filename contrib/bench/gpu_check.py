"""One GPU, one script: the quickstart learns, and the trainer's MFU (`forge-host bench train`); a short table last.

python contrib/bench/gpu_check.py --steps 200 --out /tmp/out
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROWS: list[str] = []
SPANS = ("step_s", "generate_s", "train_s", "sync_s", "host_s")


def row(text: str) -> None:
    ROWS.append(text)
    print(f"RESULT {text}", flush=True)


def quickstart(out: Path, steps: int) -> None:
    """The shipped recipe, unchanged but for its length; the reward must rise and every sync must verify."""
    run_dir = out / "quickstart"
    command = [sys.executable, "-m", "forge_host.cli.main", "run", "quickstart", "--run-dir", str(run_dir)]
    began = time.perf_counter()
    done = subprocess.run([*command, "--set", f"training.max_steps={steps}"], capture_output=True, text=True)
    (out / "quickstart.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        for log in sorted((run_dir / "logs").glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-1500:]}")
        row(f"quickstart: exit {done.returncode}: {done.stderr[-600:]}")
        return
    s = json.loads((run_dir / "summary.json").read_text())
    last = [json.loads(line)["metrics"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()][-10:]
    mean = {k: sum(m[f"time/{k}"] for m in last) / len(last) for k in SPANS}
    row(
        f"quickstart {steps} steps: reward first5 {s['reward_first']:.3f} last5 {s['reward_last']:.3f}, "
        f"start-up {s['startup_s']:.0f} s, training {s['train_s']:.0f} s, whole command "
        f"{time.perf_counter() - began:.0f} s, syncs verified {s['weight_syncs_verified']:.0f}"
    )
    row("last 10 steps, mean s: " + ", ".join(f"{k} {v:.3f}" for k, v in mean.items()))
    print(done.stdout[-2500:])


def train(out: Path, rows: str) -> None:
    """The trainer alone, in the shape of Qwen3-0.6B."""
    command = [sys.executable, "-m", "forge_host.cli.main", "bench", "train", "--shape", "0.6B", "--rows", rows]
    done = subprocess.run(command, capture_output=True, text=True)
    (out / "train.log").write_text(done.stdout + done.stderr)
    for line in (done.stdout if done.returncode == 0 else done.stderr[-600:]).splitlines():
        row(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--train-rows", default="varlen-16k,varlen-4k", help="rows of forge-host bench train")
    parser.add_argument("--out", type=Path, default=Path("/tmp/gpu-check"))
    parser.add_argument("--only", choices=("quickstart", "train"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only in (None, "quickstart"):
        quickstart(args.out, args.steps)
    if args.only in (None, "train"):
        train(args.out, args.train_rows)
    print("\n".join(["", "== table", *ROWS]))


if __name__ == "__main__":
    main()
