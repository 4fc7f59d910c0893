"""From the command to the first answer: `forge-host run quickstart` beside vLLM alone with the same model and settings.

    python contrib/bench/startup.py [--rounds 2]

vLLM alone is a Python process that makes `vllm.LLM` and lets it answer one prompt with one token, in the environment
that the plugin sets (threads, allocator). The run is stopped when its first answers are in the rollout record: graded
answers to three prompts of up to 24 tokens, so its figure is an upper bound. Both take turns, the file cache warm.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ALONE = """
import json, sys
settings = json.loads(sys.argv[1])
if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    answer = LLM(**settings).generate(["What is 2 + 3?"], SamplingParams(max_tokens=1), use_tqdm=False)
    print("first token", answer[0].outputs[0].token_ids[0], flush=True)
"""


def vllm_alone(folder: Path, settings: dict[str, Any], variables: dict[str, str]) -> float:
    script = folder / "alone.py"
    script.write_text(ALONE)
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, str(script), json.dumps(settings)], env={**os.environ, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("first token"):
                seconds = time.perf_counter() - began
                process.kill()
                return seconds
        assert process.stderr is not None
        raise SystemExit(f"vLLM alone failed: {process.stderr.read()[-2000:]}")


def host(folder: Path) -> tuple[float, float]:
    """Seconds to the first answer and, of these, to all roles being up."""
    run_dir = folder / f"run-{time.time_ns()}"
    began = time.perf_counter()
    command = [sys.executable, "-m", "forge_host.cli.main", "run", "quickstart", "--quiet", "--run-dir", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        record = run_dir / "rollouts" / "rollouts.jsonl"
        while not (record.exists() and record.stat().st_size):
            if process.poll() is not None:
                assert process.stderr is not None
                raise SystemExit(f"the run failed: {process.stderr.read()[-2000:]}")
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    return seconds, float(json.loads((run_dir / "summary.json").read_text())["startup_s"] or 0)


def settings_of_the_quickstart() -> tuple[dict[str, Any], dict[str, str]]:
    """What the plugin tells vLLM, and the variables of its process."""
    from forge_plugin_vllm.arguments import engine_arguments
    from forge_plugin_vllm.config import VLLMConfig
    from forge_plugin_vllm.environment import environment

    from forge_host.config import load_plugins, resolve
    from forge_host.config.model import resolve_model

    plugins = load_plugins(["quickstart"])
    resolved = resolve(["quickstart"], host=plugins)
    path = resolve_model(resolved.config.model, plugins)()
    context: Any = SimpleNamespace(
        config=resolved.config, plan=resolved.plan, device="cpu", procs=1, role="generator", model_path=path
    )
    arguments = engine_arguments(
        VLLMConfig(), model_path=path, max_model_len=resolved.config.training.seq_len, device="cpu", seed=0,
        sequences=64,
    )  # fmt: skip
    own = ("worker_extension_cls",)
    return {k: v for k, v in arguments.items() if k not in own}, environment(VLLMConfig(), context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    settings, variables = settings_of_the_quickstart()
    alone, ours, ready = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(options.rounds):
            alone.append(vllm_alone(Path(temporary), settings, variables))
            seconds, roles = host(Path(temporary))
            ours.append(seconds)
            ready.append(roles)
            text = f"vLLM alone {alone[-1]:.1f} s, run {seconds:.1f} s (roles up in {roles:.1f} s)"
            print(f"round {number}: {text}", flush=True)
    a, b = statistics.median(alone), statistics.median(ours)
    print(f"median: vLLM alone {a:.1f} s, run {b:.1f} s, ratio {b / a:.2f}")


if __name__ == "__main__":
    main()
