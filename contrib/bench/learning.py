"""Does every algorithm learn? Runs the quickstart with each and prints first-5 and last-5 mean rewards.

    python contrib/bench/learning.py --steps 20
    python contrib/bench/learning.py --algorithms grpo --seeds 0 1 2 --steps 16
    python contrib/bench/learning.py --algorithms dapo gspo -- --set training.learning_rate=2e-5

What follows `--` goes to `forge-host run`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ALGORITHMS = (
    "grpo", "dr-grpo", "dapo", "cispo", "gspo", "gspo-token", "sapo", "reinforce", "rloo", "reinforce-pp",
    "reinforce-pp-baseline",
)  # fmt: skip


def learn(algorithm: str, seed: int, steps: int, folder: Path, more: list[str]) -> str:
    """One run; its row of the table."""
    run_dir = folder / f"{algorithm}-{seed}"
    command = [sys.executable, "-m", "forge_host.cli.main", "run", "quickstart", "--quiet", "--run-dir", str(run_dir)]
    keys = {"algorithm": algorithm, "training.max_steps": steps, "training.seed": seed}
    began = time.perf_counter()
    done = subprocess.run(
        command + [word for key, value in keys.items() for word in ("--set", f"{key}={value}")] + more,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        return f"| {algorithm} | {seed} | exit {done.returncode}: {done.stderr.strip().splitlines()[-1][:150]} | | | |"
    s = json.loads((run_dir / "summary.json").read_text())
    first, last = s["reward_first"], s["reward_last"]
    return f"| {algorithm} | {seed} | {first:.3f} | {last:.3f} | {last - first:+.3f} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=None)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    own, more = words[:cut], words[cut + 1 :]
    args = parser.parse_args(own)
    folder = args.out or Path(tempfile.mkdtemp(prefix="learning-"))
    print(f"| algorithm | seed | first 5 steps | last 5 of {args.steps} | change | s, whole command |")
    print("|---|---|---|---|---|---|")
    for algorithm in args.algorithms:
        for seed in args.seeds:
            print(learn(algorithm, seed, args.steps, folder, more), flush=True)


if __name__ == "__main__":
    main()
