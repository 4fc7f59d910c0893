"""What a loss costs, against the plain PPO clip written by hand in torch: forward + backward, [64, 1024] float32, CPU.

    python contrib/bench/loss_overhead.py
    python contrib/bench/loss_overhead.py --fused        # also: log-probabilities from hidden states, N 1536, V 49152

`loss` is the component with the host's aggregation, `objective` everything a trainer calls (masking, dropping of bad
tokens, metrics). Runs alternate between hand-written and measured code, so that other load on the machine hits both;
the ratio is that of the medians. Exit code 1 when a loss costs more than 1.5 times the plain one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forge_host.rl import Objective, StepTotals, aggregate, linear_logprobs
from forge_host.rl.types import LossOutput
from forge_host.testing.evaluate import component, make_objective
from forge_host.types import Aggregation

LOSSES = ("grpo", "simple-grpo", "dapo", "cispo", "gspo", "gspo-token", "sapo", "reinforce", "rloo", "ppo-clip")
LIMIT = 1.5


def batch(rows: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = rows, width
    logprobs = -torch.rand(shape, generator=generator) - 0.1

    def near() -> Tensor:
        return logprobs + 0.1 * torch.randn(shape, generator=generator)

    lengths = torch.randint(width // 2, width + 1, (rows, 1), generator=generator)
    return {
        "logprobs": logprobs.requires_grad_(),
        "old_logprobs": near().detach(),
        "generator_logprobs": near().detach(),
        "ref_logprobs": near().detach(),
        "advantages": torch.randn(rows, 1, generator=generator).expand(shape).contiguous(),
        "padding_mask": torch.arange(width) < lengths,
    }


def plain_ppo_clip(t: dict[str, Tensor]) -> Tensor:
    """By hand, token mean."""
    mask = t["padding_mask"].float()
    ratio = torch.exp(t["logprobs"] - t["old_logprobs"])
    clipped = torch.clamp(ratio, 0.8, 1.2)
    loss = -torch.min(ratio * t["advantages"], clipped * t["advantages"])
    return (loss * mask).sum() / mask.sum()


def loss_alone(ref: str, t: dict[str, Tensor]) -> Callable[[], Tensor]:
    call = component("loss", ref)
    totals, mode = StepTotals.of([t["padding_mask"]]), Aggregation()

    def run() -> Tensor:
        out = call(**t)
        return aggregate(out.loss if isinstance(out, LossOutput) else out, t["padding_mask"], mode, totals)

    return run


def whole_objective(ref: str, t: dict[str, Tensor]) -> Callable[[], Tensor]:
    objective: Objective = make_objective(ref)
    totals = StepTotals.of([t["padding_mask"]])
    return lambda: objective(t, totals)[0]


def alternate(one: Callable[[], Any], two: Callable[[], Any], runs: int) -> tuple[float, float]:
    """Median seconds of each, measured in turns after a warm-up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(runs + runs // 5):
        for kept, work in zip(times, (one, two), strict=True):
            start = time.perf_counter()
            work()
            if number >= runs // 5:
                kept.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def losses(runs: int) -> list[dict[str, Any]]:
    t = batch(64, 1024)

    def step(forward: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            t["logprobs"].grad = None
            forward().backward()

        return run

    rows = []
    for ref in LOSSES:
        for what, made in (("loss", loss_alone), ("objective", whole_objective)):
            plain, mine = alternate(step(lambda: plain_ppo_clip(t)), step(made(ref, t)), runs)
            rows.append({"loss": ref, "what": what, "plain_ms": plain * 1e3, "ms": mine * 1e3, "ratio": mine / plain})
    return rows


def fused(runs: int) -> list[dict[str, Any]]:
    """SmolLM2-135M's head with 1536 response tokens: `linear_logprobs` against log_softmax of the logits."""
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1536, 576, generator=generator).to(dtype).requires_grad_()
        weight = (0.04 * torch.randn(49152, 576, generator=generator)).to(dtype).requires_grad_()
        ids = torch.randint(49152, (1536,), generator=generator)

        def naive(h: Tensor = hidden, w: Tensor = weight, ids: Tensor = ids) -> None:
            torch.log_softmax((h @ w.t()).float(), -1).gather(1, ids[:, None]).sum().backward()

        def mine(h: Tensor = hidden, w: Tensor = weight, ids: Tensor = ids) -> None:
            linear_logprobs(h, w, ids)[0].sum().backward()

        plain, found = alternate(naive, mine, runs)
        name = f"linear_logprobs {str(dtype).removeprefix('torch.')}"
        rows.append({"loss": name, "what": "fused", "plain_ms": plain * 1e3, "ms": found * 1e3, "ratio": found / plain})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fused", action="store_true", help="also measure linear_logprobs (a minute)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = losses(options.runs)
    if options.fused:
        rows += fused(5)
    if options.json:
        print(json.dumps(rows))
    else:
        print(f"{'':28}{'':10}{'plain ms':>10}{'ms':>10}{'ratio':>8}")
        for row in rows:
            print(f"{row['loss']:28}{row['what']:10}{row['plain_ms']:10.3f}{row['ms']:10.3f}{row['ratio']:8.2f}")
    return int(any(row["what"] == "loss" and row["ratio"] > LIMIT for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
