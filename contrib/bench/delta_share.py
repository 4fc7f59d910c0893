"""Would sending only what changed pay? Share of tensors and of elements that a step leaves as published.

    python contrib/bench/delta_share.py --model /models/SmolLM2-135M --learning-rates 1e-6 1e-5

Float32 weights, AdamW, published in bfloat16: an element is unchanged when its step is below bfloat16's resolution.
"""

from __future__ import annotations

import argparse

import torch
from forge_plugin_titan.config import TitanConfig
from forge_plugin_titan.device import prepare
from forge_plugin_titan.engine import TitanEngine

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.loop.batch import Row, make_batches
from forge_host.rl import Objective
from forge_host.types import Completion


def weighted(logprobs, generator_logprobs, advantages):
    return -(logprobs - generator_logprobs).exp() * advantages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--learning-rates", nargs="+", type=float, default=[1e-6, 1e-5])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    device = prepare(args.device)
    draw = torch.Generator().manual_seed(0)
    for rate in args.learning_rates:
        training = TrainingConfig(seq_len=128, learning_rate=rate)
        engine = TitanEngine(
            TitanConfig(), args.model, training, ParallelismConfig(), Objective(weighted), device=device
        )
        for step in range(1, args.steps + 1):
            before = {name: tensor.clone() for name, tensor in engine.named_tensors()}
            rows = []
            for i in range(8):
                ids = torch.randint(0, 49000, (96,), generator=draw).tolist()
                rows.append(Row(Completion(text="", prompt_ids=ids[:32], token_ids=ids[32:], logprobs=[-11.0] * 64),
                                i // 4, 0.0, 0.5 - i % 2))  # fmt: skip
            engine.train_step(*make_batches(rows, 1))
            after = dict(engine.named_tensors())
            same = {name: (before[name] == after[name]) for name in before}
            tensors = sum(bool(s.all()) for s in same.values()) / len(same)
            elements = sum(int(s.sum()) for s in same.values()) / sum(s.numel() for s in same.values())
            print(f"learning rate {rate:g}, step {step}: {tensors:.1%} of {len(same)} tensors unchanged, "
                  f"{elements:.1%} of the elements", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
