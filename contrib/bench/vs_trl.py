"""forge-host beside TRL's GRPOTrainer: same model, prompts, group size, lengths and steps, in turns; the ratio last.

    pip install trl==1.16.* accelerate datasets
    python contrib/bench/vs_trl.py --data gsm8k/train.jsonl                 # CPU: SmolLM2-135M, 4 x 8 x 96 new tokens
    python contrib/bench/vs_trl.py --data gsm8k/train.jsonl --device cuda   # GPU: shape of Qwen3-0.6B, 64 x 8 x 512
    python contrib/bench/vs_trl.py --learn --steps 200 [--device cuda]      # rewards after the same wall time

One step is one update; every response has its full length (the end-of-sequence token is ignored) unless --learn. Each
side runs in a process of its own; one that fails or takes too long leaves the other's figures standing. A step's
seconds are from the end of the step before to its end, so nothing is left out; the median of all after the warm-up.
With --parts, on the GPU or CPU, `forge-host bench loop` measures generation alone and training alone as well. With
--only, the other side's figures are those that an earlier run of the same sizes left in --out, if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from forge_host.errors import ForgeError

HERE = Path(__file__).resolve().parent
GIB = 2**30


class Memory(threading.Thread):
    """Peak memory of a process and what it started (proportional set size), and of the GPU, in bytes."""

    def __init__(self, pid: int, gpu: bool) -> None:
        super().__init__(daemon=True)
        self.pid, self.gpu, self.peak, self.over = pid, gpu, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(1.0 if self.gpu else 3.0):
            self.peak = max(self.peak, self._gpu() if self.gpu else self._tree())

    def _gpu(self) -> int:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        return int(shown[0]) * 2**20 if shown and shown[0].isdigit() else 0

    def _tree(self) -> int:
        import psutil

        total = 0
        try:
            parent = psutil.Process(self.pid)
            for process in [parent, *parent.children(recursive=True)]:
                total += process.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile; the sample before stands
            return 0
        return total


def watch(command: list[str], log: Path, timeout_s: float, gpu: bool) -> tuple[str, int]:
    """Run to the end or to the timeout; how it ended ("" is well) and its peak memory in bytes."""
    with log.open("w") as out:
        env = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=env)
        memory = Memory(process.pid, gpu)
        memory.start()
        try:
            code = process.wait(timeout_s)
            problem = "" if code == 0 else f"exit {code}, see {log}"
        except subprocess.TimeoutExpired:
            problem = f"stopped after {timeout_s:.0f} s"
        finally:  # also when this process is told to end
            memory.over.set()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        memory.join()
    return problem, memory.peak


def trl_side(task: dict[str, Any], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    (folder / "task.json").write_text(json.dumps(task))
    out = folder / "trl.json"
    command = [arguments.trl_python, str(HERE / "trl_side.py"), str(folder / "task.json"), str(out)]
    problem, peak = watch(command, folder / "trl.log", arguments.timeout, task["device"] == "cuda")
    found = json.loads(out.read_text()) if out.is_file() else {"began": 0, "ends": [], "tokens": [], "rewards": []}
    return {**found, "problem": problem, "peak": peak}


def forge_config(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The task as a run's configuration."""
    config: dict[str, Any] = {
        "name": "vs-trl", "model": task["model"], "algorithm": "grpo", "run_dir": str(folder / "runs"),
        "dataset": {"path": task["data"], "prompt_field": "prompt", "target_field": "target"},
        "rewards": ["math" if task["reward"] == "math" else f"{HERE / 'vs_reward.py'}:text_hash"],
        "training": {
            "batch_size": task["prompts"], "max_steps": task["steps"], "seq_len": task["seq_len"], "seed": task["seed"],
            "learning_rate": task["learning_rate"], "max_policy_age": task["max_policy_age"],
        },
        "sampling": {"n": task["samples"], "max_tokens": task["max_tokens"], "temperature": 1.0,
                     "ignore_eos": task["fixed"]},
        "kl": {"beta": 0.0}, "aggregation": {"mode": "token-mean"}, "checkpoint": {"export": False},
    }  # fmt: skip
    if task["system"]:
        config["dataset"]["system"] = task["system"]
    if task["device"] == "cuda":
        config["training"] |= {"compile": task["compile"], "micro_batch_tokens": task["micro_batch_tokens"]}
        config["generator"] = {
            "use": "vllm", "gpu_memory_utilization": task["gpu_share"],
            "max_num_seqs": task["prompts"] * task["samples"],
        }  # fmt: skip
        if task["transport"]:
            config["transport"] = task["transport"]
    else:
        config["services"] = {role: {"with_gpus": False} for role in ("trainer", "generator")}
    return config


def forge_side(task: dict[str, Any], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    (folder / "forge.yaml").write_text(json.dumps(forge_config(task, folder)))  # JSON is YAML
    run_dir, command = folder / "run", [sys.executable, "-m", "forge_host.cli.main", "run", str(folder / "forge.yaml")]
    for setting in arguments.set:
        command += ["--set", setting]
    command += ["--quiet", "--run-dir", str(run_dir)]
    problem, peak = watch(command, folder / "forge.log", arguments.timeout, task["device"] == "cuda")
    metrics = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    if not rows:
        return {"began": 0, "ends": [], "tokens": [], "rewards": [], "problem": problem or "no step", "peak": peak}
    of = [row["metrics"] for row in rows]
    return {
        "began": rows[0]["time"] - of[0]["time/step_s"], "ends": [row["time"] for row in rows],
        "tokens": [m["tokens/generated"] for m in of], "rewards": [m["reward/mean"] for m in of],
        "useful": statistics.fmean(m["tokens/useful_share"] for m in of), "problem": problem, "peak": peak,
        "spans": {k: statistics.median(m[f"time/{k}"] for m in of[task["warmup"] :] or of)
                  for k in ("generate_s", "train_s", "sync_s", "host_s")},
    }  # fmt: skip


SIDES = {"trl": trl_side, "forge-host": forge_side}


def parts(task: dict[str, Any], folder: Path, timeout_s: float) -> dict[str, Any]:
    """Generation and training alone, their sum and the step, by `forge-host bench loop`; log and run stay in folder."""
    path, log, run_dir = folder / "parts.yaml", folder / "parts.log", folder / "parts-run"
    shutil.rmtree(run_dir, ignore_errors=True)
    path.write_text(json.dumps(forge_config(task, folder)))
    command = [sys.executable, "-m", "forge_host.cli.main", "bench", "loop", str(path), "--json"]
    command += ["--mode", "both" if task["max_policy_age"] else "sync", "--warmup", str(max(1, task["warmup"]))]
    command += ["--steps", str(task["steps"] - task["warmup"]), "--run-dir", str(run_dir)]
    problem, _ = watch(command, log, timeout_s, task["device"] == "cuda")
    lines = log.read_text(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.startswith("{")), "") if not problem else ""
    print("\n".join(line for line in lines[-30:] if line != last), problem, sep="\n", flush=True)
    found: dict[str, Any] = json.loads(last) if last else {}
    return found


def row(name: str, found: dict[str, Any], warmup: int) -> dict[str, Any]:
    """One run's figures."""
    times = [found["began"], *found["ends"]]
    steps = [b - a for a, b in zip(times, times[1:], strict=False)][warmup:]
    out: dict[str, Any] = {
        "side": name, "earlier": found.get("earlier", False), "steps": steps, "peak_gib": found["peak"] / GIB,
        "problem": found["problem"],
    }  # fmt: skip
    if steps:
        out |= {
            "s_per_step": statistics.median(steps), "useful_share": found["useful"], "spans": found.get("spans", {}),
            "tokens_per_s": sum(found["tokens"][warmup:]) / sum(steps),
        }  # fmt: skip
    return out


def run_side(name: str, task: dict[str, Any], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """A side's run, kept in its folder for a later run with --only."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found = SIDES[name](task, folder, arguments)
    whole = folder / "side.json"
    whole.with_suffix(".part").write_text(json.dumps({"task": task, "found": found}))
    whole.with_suffix(".part").replace(whole)  # never half of one
    return found


def earlier(task: dict[str, Any], folder: Path) -> tuple[dict[str, Any], int] | None:
    """What an earlier run left in a side's folder, and its warm-up; None where the work was another."""
    if not (file := folder / "side.json").is_file():
        return None
    kept = json.loads(file.read_text())
    if differ := [k for k in task if k not in ("steps", "warmup", "data") and kept["task"].get(k) != task[k]]:
        print(f"{file} is of another {differ[0]} and left out", flush=True)
        return None
    return {**kept["found"], "earlier": True}, kept["task"]["warmup"]


def show(found: dict[str, Any]) -> None:
    if found["earlier"]:
        print(f"{found['side']:>10}  of an earlier run:")
    if "s_per_step" in found:
        spans = ", ".join(f"{k.removesuffix('_s')} {v:.2f}" for k, v in found["spans"].items())
        print(
            f"{found['side']:>10}  {found['s_per_step']:7.2f} s/step  {found['tokens_per_s']:8,.0f} tokens/s  "
            f"useful {found['useful_share']:6.1%}  peak {found['peak_gib']:5.1f} GiB  {spans}", flush=True,
        )  # fmt: skip
    if found["problem"]:
        print(f"{found['side']:>10}  {found['problem']}", flush=True)


def learning(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Reward of both after the same wall time: each the mean of the ten steps before it. The last is of the shorter."""
    curves = {name: [(end - run["began"], r) for end, r in zip(run["ends"], run["rewards"], strict=True)]
              for name, run in runs.items() if run["ends"]}  # fmt: skip
    if len(curves) < 2:
        return {}
    last = min(curve[-1][0] for curve in curves.values())
    table: dict[str, Any] = {"steps": {name: len(curve) for name, curve in curves.items()}}
    for part in (0.1, 0.25, 0.5, 0.75, 1.0):
        means = {}
        for name, curve in curves.items():
            done = [reward for seconds, reward in curve if seconds <= part * last]
            means[name] = statistics.fmean(done[-10:]) if done else None
        shown = ", ".join(f"{name} {'none yet' if m is None else f'{m:.3f}'}" for name, m in means.items())
        print(f"after {part * last:6.1f} s: {shown}")
        table[f"{part * last:.1f}"] = means
    return table


def prepare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The task both sides get: model folder, prompts in a file, sizes."""
    from vs_task import arithmetic, make_task, records_of, shaped_model, smollm2

    cuda = arguments.device == "cuda"
    model = arguments.model or (smollm2() if arguments.learn or not cuda else shaped_model(folder / "qwen3"))
    task = make_task(arguments, model)
    records = arithmetic() if arguments.learn else records_of(arguments.data, task, model)
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return {**task, "data": str(path)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="JSON Lines with question and answer (not with --learn)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--learn", action="store_true", help="real weights on arithmetic; compares rewards")
    parser.add_argument("--model", default="", help="Hugging Face folder instead of the chosen one")
    parser.add_argument("--rounds", type=int, default=None, help="alternations; default 2, with --learn 1")
    parser.add_argument("--steps", type=int, default=None, help="measured steps; default 2 on a CPU, 6 on a GPU")
    parser.add_argument("--warmup", type=int, default=None, help="steps not counted; default 1 on a CPU, 3 on a GPU")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--micro-batch", type=int, help="TRL's per-device batch; default all on a CPU, 16 on a GPU")
    parser.add_argument("--trl-dtype", choices=("bfloat16", "float32"), help="TRL's weights; bfloat16 on a CPU")
    parser.add_argument("--checkpointing", action="store_true", help="TRL recomputes activations (its default)")
    parser.add_argument("--max-policy-age", type=int, default=0, help="forge-host's; 0 is synchronous as TRL is")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="more settings of forge-host's run")
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has trl")
    parser.add_argument("--only", choices=("trl", "forge-host"))
    parser.add_argument("--parts", action="store_true", help="also generation alone and training alone")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds one side may take")
    parser.add_argument("--out", type=Path, help="folder for logs and results; default a temporary one")
    parser.add_argument("--json", action="store_true", help="one last line with everything, `ratio` among it")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.learn:
        parser.error("--data is missing: a JSON Lines file with question and answer, such as GSM8K's train.jsonl")
    sys.path.insert(0, str(HERE))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as temporary:
        out = (arguments.out or Path(temporary)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        try:
            task = prepare(arguments, out)
        except ForgeError as error:
            parser.error(str(error))
        results, runs = [], {}
        for number in range(arguments.rounds or (1 if arguments.learn else 2)):
            for name in SIDES:
                folder = out / f"{number}-{name}"
                if arguments.only in (None, name):
                    runs[name], warmup = run_side(name, task, folder, arguments), task["warmup"]
                elif kept := earlier(task, folder):
                    runs[name], warmup = kept
                else:
                    continue
                results.append(row(name, runs[name], warmup))
                show(results[-1])
        verdict: dict[str, Any] = {"task": task, "results": results, "ratio": None}
        if arguments.learn:
            verdict["learning"] = learning(runs)
        steps = {n: [s for r in results if r["side"] == n for s in r["steps"]] for n in SIDES}
        if all(steps.values()):
            verdict["ratio"] = statistics.median(steps["trl"]) / statistics.median(steps["forge-host"])
            print(f"trl / forge-host: {verdict['ratio']:.2f}")
        if arguments.parts:
            verdict["parts"] = parts(task, out, arguments.timeout)
    if arguments.json:
        print(json.dumps(verdict))


if __name__ == "__main__":
    main()
