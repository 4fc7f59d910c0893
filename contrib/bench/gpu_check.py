"""One GPU, one script: the quickstart learns, and the trainer's MFU; a short table last.

    python contrib/bench/gpu_check.py --steps 200 --out /tmp/out

MFU counts 6 N floating-point operations a token (N without the embedding's lookup) over `--peak` TFLOP/s.
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


def qwen3(out: Path) -> Path:
    """A folder with the shape of Qwen3-0.6B and random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    path = out / "qwen3-0.6b-random"
    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=8192, rope_theta=1e6, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(path)
    return path


def weighted(logprobs, generator_logprobs, advantages):
    return -(logprobs - generator_logprobs).exp() * advantages


def train(path: Path, tokens: int, peak: float, compile_it: bool) -> None:
    """Forward, backward and optimizer of packed micro-batches of `tokens` tokens."""
    import torch
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.device import prepare
    from forge_plugin_titan.engine import TitanEngine

    from forge_host.config.schema import ParallelismConfig, TrainingConfig
    from forge_host.loop.batch import Row, make_batches
    from forge_host.rl import Objective
    from forge_host.types import Completion

    device = prepare("cuda")
    training = TrainingConfig(seq_len=tokens, micro_batch_tokens=tokens, compile=compile_it)
    config = TitanConfig(share_prompts=False)
    engine = TitanEngine(config, str(path), training, ParallelismConfig(), Objective(weighted), device=device)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i in range(8 * tokens // 512):
        ids = torch.randint(0, 150000, (512,), generator=generator).tolist()
        completion = Completion(text="", prompt_ids=ids[:128], token_ids=ids[128:], logprobs=[-11.9] * 384)
        rows.append(Row(completion, i // 8, 0.0, 0.5 - i % 2))
    inputs, targets = make_batches(rows, 8)
    for _ in range(3):
        engine.train_step(inputs, targets)
    began = time.perf_counter()
    for _ in range(4):
        engine.train_step(inputs, targets)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / 4
    parameters = sum(p.numel() for p in engine.model.parameters())
    rate = 8 * tokens / seconds
    mfu = 6 * parameters * rate / (peak * 1e12)
    row(
        f"train Qwen3-0.6B shape, {tokens}-token packing, compile {compile_it}: {rate:,.0f} tokens/s, MFU {mfu:.1%} "
        f"(N {parameters / 1e6:.0f} M), {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--peak", type=float, default=790.0, help="bf16 dense TFLOP/s")
    parser.add_argument("--out", type=Path, default=Path("/tmp/gpu-check"))
    parser.add_argument("--only", choices=("quickstart", "train", "train-compile"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only in (None, "quickstart"):
        quickstart(args.out, args.steps)
    if args.only in (None, "train", "train-compile"):
        train(qwen3(args.out), 4096, args.peak, args.only == "train-compile")
    print("\n".join(["", "== table", *ROWS]))


if __name__ == "__main__":
    main()
