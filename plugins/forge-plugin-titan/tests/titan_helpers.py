"""Small random models, micro-batches and an objective for the trainer's tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forge_host.rl import Objective

VOCAB = 97


def save_model(path: str, family: str = "llama", *, tied: bool = True, dtype: str = "float32", layers: int = 2) -> Any:
    """A tiny random transformers model of the family, saved in `path`; returns it in eval mode."""
    import transformers

    torch.manual_seed(0)
    config, cls = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[family]
    model = cls(
        config(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=tied, rms_norm_eps=1e-5,
            initializer_range=0.2,
        )
    ).to(getattr(torch, dtype))  # fmt: skip
    model.save_pretrained(path)
    return model.eval()


def make_row(rng: random.Random, prompt: Sequence[int], length: int, advantage: float = 1.0) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "response": [rng.randrange(VOCAB) for _ in range(length)],
        "advantage": advantage,
    }


def make_rows(seed: int = 0, groups: int = 3, per_group: int = 3) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(groups):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))]
        rows += [make_row(rng, prompt, rng.randrange(1, 8), rng.uniform(-1, 1)) for _ in range(per_group)]
    return rows


def pack(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One micro-batch of the rows, in the trainer's packed form."""
    sequences = [[*r["prompt"], *r["response"]] for r in rows]
    width = max(len(r["response"]) for r in rows)
    lengths = torch.tensor([len(r["response"]) for r in rows])
    response = torch.zeros(len(rows), width, dtype=torch.int64)
    for out, r in zip(response, rows, strict=True):
        out[: len(r["response"])] = torch.tensor(r["response"])
    mask = torch.arange(width) < lengths[:, None]
    advantages = torch.tensor([r["advantage"] for r in rows])[:, None].expand(-1, width) * mask
    inputs = {
        "tokens": torch.tensor([[t for s in sequences for t in s]]),
        "positions": torch.tensor([[i for s in sequences for i in range(len(s))]]),
        "sequence_ids": torch.tensor([[b for b, s in enumerate(sequences) for _ in s]]),
    }
    targets = {
        "response": response, "padding_mask": mask, "advantages": advantages,
        "generator_logprobs": torch.full((len(rows), width), -3.0), "ref_logprobs": None,
        "prompt_lengths": torch.tensor([len(r["prompt"]) for r in rows]), "lengths": lengths,
        "group_ids": torch.arange(len(rows)), "rewards": torch.zeros(len(rows)),
    }  # fmt: skip
    return inputs, targets


def batches(parts: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[list[Any], list[Any]]:
    packed = [pack(part) for part in parts]
    return [p[0] for p in packed], [p[1] for p in packed]


def policy_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """The plainest per-token loss there is."""
    return -advantages * logprobs


def objective() -> Objective:
    return Objective(policy_gradient)
