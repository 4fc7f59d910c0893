"""What a step takes beside generation and training: `forge-host bench loop` with the roles of instant_roles.py.

    python contrib/bench/host_share.py --data gsm8k/train.jsonl --prompts 64 --samples 8 --tokens 512

All responses end at once, so nothing of the grading hides behind generation: the host's share at its largest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="JSON Lines with question and answer")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="of each response")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from vs_task import smollm2

    config = {
        "name": "host-share", "model": smollm2(), "algorithm": "grpo", "kl": {"beta": 0.0}, "transport": "shm",
        "dataset": {"path": str(args.data.resolve()), "prompt_field": "question", "target_field": "answer"},
        "rewards": [f"{HERE / 'vs_reward.py'}:text_hash"],
        "generator": {"use": "instant-roles/instant"}, "trainer": {"use": "instant-roles/instant"},
        "services": {role: {"with_gpus": False} for role in ("trainer", "generator")},
        "training": {"batch_size": args.prompts, "seq_len": 512 + args.tokens, "deterministic": False,
                     "verify_weight_sync": False},
        "sampling": {"n": args.samples, "max_tokens": args.tokens, "ignore_eos": True},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host_share.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        command = [sys.executable, "-m", "forge_host.cli.main", "bench", "loop", str(path), "--mode", "sync"]
        command += ["--plugin-file", str(HERE / "instant_roles.py"), "--steps", str(args.steps), "--warmup", "1"]
        sys.exit(subprocess.run([*command, "--run-dir", str(Path(folder) / "run")]).returncode)


if __name__ == "__main__":
    main()
