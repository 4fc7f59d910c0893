"""One GPU, one script: each row a command with a deadline of its own; the end of their outputs together last.

    python contrib/bench/gpu_check.py --data gsm8k/train.jsonl --out /tmp/gpu-check
    python contrib/bench/gpu_check.py --data gsm8k/train.jsonl --rows step generate

The whole output of a row is in OUT/ROW.log. Models are random weights in the shape of Qwen3-0.6B, but for `sizes`,
`learn` and `quickstart`. With one --out, later rows find what vLLM compiled for earlier ones. `forge` and `trl` need
--data.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLI = ("-m", "forge_host.cli.main")
SHOWN = 14  #: last lines of a row's output that the table has


def commands(args: argparse.Namespace) -> dict[str, tuple[int, list[str]]]:
    """Row: seconds it may take, and what Python is given."""
    out, model = args.out, str(args.out / "qwen3")
    versus = [str(HERE / "vs_trl.py"), "--device", "cuda", "--rounds", "1", "--out", str(out)]
    data = ["--data", str(args.data)]
    sync = ["copy", "moves:cuda-ipc", "safe:cuda-ipc", "vllm:cuda-ipc"]
    return {
        "step": (240, [str(HERE / "engine_step.py"), "--model", model]),
        "generate": (300, [*CLI, "bench", "generate", "--model", model, "--sequences", "256", "--tokens", "512",
                           "--repeats", "2"]),
        "train": (120, [*CLI, "bench", "train", "--rows", "varlen-16k,flex-16k"]),
        "forge": (600, [*versus, *data, "--only", "forge-host", "--steps", "3", "--warmup", "2", "--parts"]),
        "trl": (330, [*versus, *data, "--only", "trl", "--steps", "2", "--warmup", "1"]),
        "sync": (420, [str(HERE / "gpu_sync.py"), "--out", str(out / "sync"), "--model", model, "--rows", *sync]),
        "sizes": (180, [*CLI, "bench", "sync", "cuda-ipc", "--device", "cuda", "--models", "135M,0.6B,1.7B,8B",
                        "--repeats", "5"]),
        "learn": (560, [str(HERE / "vs_trl.py"), "--device", "cuda", "--learn", "--steps", str(args.steps), "--timeout",
                        "250", "--out", str(out / "learn")]),
        "quickstart": (300, [*CLI, "run", "quickstart", "--check", "--run-dir", str(out / "quickstart")]),
    }  # fmt: skip


def run(row: str, seconds: int, command: list[str], out: Path) -> list[str]:
    """The end of the row's output, and how it ended if not well."""
    log, began = out / f"{row}.log", time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            problem = "" if process.wait(seconds) == 0 else f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            problem = "not done in time"
        finally:  # also when this process is told to end: what a row leaves behind holds the GPU's memory
            if process.poll() is None:
                process.terminate()  # a run's processes end with it
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line.split("\r")[-1][:240] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    ended = [f"FAILED: {problem}"] if problem else []
    return [f"== {row} ({time.perf_counter() - began:.0f} s)", *lines[-SHOWN:], *ended]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="JSON Lines with question and answer, such as GSM8K's train.jsonl")
    parser.add_argument("--out", type=Path, default=Path("/tmp/gpu-check"))
    parser.add_argument("--steps", type=int, default=200, help="of `learn`")
    parser.add_argument("--rows", nargs="+", help="which, and in what order; default all")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = commands(args)
    if unknown := set(args.rows or ()) - rows.keys():
        parser.error(f"no row is named {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    if args.data is None and (asked := {"forge", "trl"} & set(args.rows or rows)):
        parser.error(f"--data is missing, for {' and '.join(sorted(asked))}; give it, or choose other --rows")
    if not (args.out / "qwen3" / "config.json").is_file():
        sys.path.insert(0, str(HERE))
        from vs_task import shaped_model

        shaped_model(args.out / "qwen3")
    table: list[str] = []
    for row in args.rows or rows:
        found = run(row, *rows[row], args.out)
        print("\n".join(found), flush=True)
        table += found
    print("\n".join(["", "== all", *table]))


if __name__ == "__main__":
    main()
