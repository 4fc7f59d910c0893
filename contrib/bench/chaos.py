"""Kill one generator replica, reward worker or reference replica at a random moment of a run; twenty times.

    python contrib/bench/chaos.py [--runs 20] [--seed 0] [--keep DIR]
    python contrib/bench/chaos.py --runs 1 --kills 20 --steps 60 --length 60     # twenty in one run: sooner, and harder

Each run is a whole `forge-host run` of the table model of tests/loop: real Monarch processes, two generator replicas,
two reward workers, a reference model, rollouts one version ahead. The moment is uniform over the length of a run,
start-up included; the target is one process of those roles that is there at that moment. A run passes when it ends with
exit code 0 after all its steps, its ledger gives every episode one fate and none two, every step trained on a whole
batch, and no process is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from forge_host.loop.ledger import check_ledger
from forge_host.testing.faults import hit, started

ROLES = Path(__file__).resolve().parents[2] / "tests" / "loop" / "fake_roles.py"
TARGETS = ("generator", "reward", "ref_model")
BATCH, SAMPLES = 4, 8


def configuration(folder: Path, steps: int) -> Path:
    """A configuration of the table model, with its tokenizer and prompts, in `folder`."""
    sys.path.insert(0, str(ROLES.parents[1] / "support"))
    from fake_runs import write_letters_model

    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": w, "answer": "b"}) + "\n" for w in ("cab", "bad", "face", "deaf")))
    two = {"num_replicas": 2, "max_restarts": 100}
    config = {
        "name": "chaos", "model": write_letters_model(folder / "model"), "rewards": [f"{ROLES}:share_of_b"],
        "dataset": {"path": str(prompts), "chat": False}, "run_dir": str(folder / "runs"), "kl": {"beta": 0.01},
        "training": {"batch_size": BATCH, "max_steps": steps, "seq_len": 64, "max_policy_age": 1},
        "algorithm": {"use": "fake-roles/fake", "n_samples": SAMPLES, "max_tokens": 8},
        "generator": {"use": "fake-roles/fake", "delay_s": 0.15}, "trainer": {"use": "fake-roles/fake", "delay_s": 0.1},
        "services": {"generator": two, "reward": two, "ref_model": {"max_restarts": 100}},
        "monarch": {"shutdown_timeout": 5},
    }  # fmt: skip
    (folder / "c.yaml").write_text(json.dumps(config))
    return folder / "c.yaml"


def one(config: Path, run_dir: Path, moments: list[float], chooser: random.Random, steps: int) -> dict[str, Any]:
    """One run, with kills so many seconds after its start; what happened."""
    command = [sys.executable, "-m", "forge_host.cli.main", "run", str(config), "--plugin-file", str(ROLES)]
    env = {**os.environ, "FORGE_TEST_MARK": str(run_dir)}
    began, killed = time.monotonic(), []
    with open(run_dir.with_suffix(".out"), "w") as out:
        process = subprocess.Popen([*command, "--run-dir", str(run_dir)], stdout=out, stderr=out, env=env)
        for moment in sorted(moments):
            there: list[Any] = []
            while not there and process.poll() is None:
                time.sleep(max(0.02, began + moment - time.monotonic()))
                there = [p for p in processes(run_dir) if p.role in TARGETS]
            if there:
                target = chooser.choice(there)
                killed.append(target.mesh)
                hit(target.pid, "kill")
        code = process.wait(timeout=900)
    text = run_dir.with_suffix(".out").read_text()
    result: dict[str, Any] = {"killed": killed, "code": code, "s": round(time.monotonic() - began, 1)}
    if code != 0:
        return {**result, "problem": text.strip().splitlines()[-1]}
    made = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    counts = check_ledger(run_dir)
    result |= counts | {"restarts": text.count("replica lost, restarting")}
    time.sleep(0.5)
    left = [p.pid for p in started(run_dir) if Path(f"/proc/{p.pid}").exists()]
    if made != list(range(1, steps + 1)):
        result["problem"] = f"steps {made}"
    elif counts["trained"] + counts.get("dropped", 0) < steps * BATCH * SAMPLES:
        result["problem"] = f"a step trained on less than its batch: {counts}"
    elif left:
        result["problem"] = f"left behind: {left}"
    return result


def processes(run_dir: Path) -> list[Any]:
    """Those of the run that are alive now."""
    if not (run_dir / "logs" / "controller.jsonl").exists():
        return []
    return [p for p in started(run_dir) if Path(f"/proc/{p.pid}").exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=1, help="in each run")
    parser.add_argument("--steps", type=int, default=10, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=float, help="seconds of a run; measured without a kill when left out")
    parser.add_argument("--keep", type=Path, help="keep the run directories here")
    options = parser.parse_args()
    chooser = random.Random(options.seed)
    length = options.length
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        config = configuration(folder, options.steps)
        if length is None:
            calm = one(config, folder / "calm", [], chooser, options.steps)
            print(f"without a kill: {calm}", flush=True)
            length = calm["s"]
        passed = counted = runs = 0
        while counted < options.runs:
            moments = sorted(chooser.uniform(0.0, length - 1.0) for _ in range(options.kills))
            result = one(config, folder / f"run-{runs:02}", moments, chooser, options.steps)
            runs += 1
            good, killed = "problem" not in result, bool(result["killed"])
            counted += killed or not good  # one that was over before its moment is made again
            passed += killed and good
            print(f"{counted:2} at {', '.join(f'{m:.1f}' for m in moments)} s: {result}", flush=True)
    print(f"{passed} of {options.runs} runs finished, each with every episode accounted for")
    sys.exit(passed != options.runs)


if __name__ == "__main__":
    main()
