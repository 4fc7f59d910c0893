"""Settings of the `titan` trainer that are not the run's own (`training:` and `parallelism:` hold those). No torch.

trainer: {use: titan, attention: sdpa, share_prompts: false}
"""

from __future__ import annotations

from typing import Any

import attrs
from attrs.validators import deep_iterable, ge, gt, in_, optional

from forge_host.types import field

#: Degrees of `parallelism:` above 1 that this trainer cannot honour, and why.
REFUSED = {
    "pipeline_parallel_degree": "a step's micro-batches differ in length, which pipeline stages cannot exchange",
    "expert_parallel_degree": "it trains dense models only, which have no experts to split",
}


def refusal(parallelism: Any) -> tuple[str, str] | None:
    """What the first of `REFUSED` that is asked for gives to read, and what to do about it."""
    for name, reason in REFUSED.items():
        degree = getattr(parallelism, name)
        if degree > 1:
            return (
                f"the titan trainer does not support parallelism.{name} {degree}: {reason}",
                "use data_parallel_shard_degree, tensor_parallel_degree or context_parallel_degree",
            )
    return None


#: TorchTitan's names of a block's matrices; `wkv` is both keys and values.
LORA_TARGETS = ("wq", "wkv", "wo", "w1", "w2", "w3")


@attrs.frozen(kw_only=True)
class TitanConfig:
    """How the trainer computes. Only LoRA changes what is learned beyond rounding."""

    attention: str = field(
        default="auto",
        help="auto, sdpa (dense blocks; any device), flex (CUDA) or varlen (flash attention, CUDA, not float32); "
        "auto is varlen on CUDA (flex in float32) and sdpa on CPU",
        validator=in_(("auto", "sdpa", "flex", "varlen")),
    )
    share_prompts: bool = field(
        default=True, help="compute a prompt once for all its responses in a micro-batch; same gradients"
    )
    publish_dtype: str | None = field(
        default=None,
        help="dtype of published and exported weights; null is training.dtype",
        validator=optional(in_(("bfloat16", "float16", "float32"))),
    )
    logprob_block: int | None = field(
        default=None, help="vocabulary entries whose logits exist at a time; null sizes it by memory",
        unit="tokens", validator=optional(ge(1)),
    )  # fmt: skip
    keep_logits: int = field(
        default=1024, help="logits kept for the backward pass, at most; the rest is computed again", unit="MiB",
        validator=ge(0),
    )  # fmt: skip
    compile_head: bool = field(default=True, help="compile the passes over the logits (CUDA)")
    pad_to: int | None = field(
        default=None,
        help="packed length (of each context-parallel process) is filled up to a multiple of this; null is 128 with "
        "flex and varlen, else 1",
        unit="tokens",
        validator=optional(ge(1)),
    )
    num_threads: int | None = field(
        default=None, help="CPU threads of one process; null divides the cores among its host's ranks",
        unit="threads", validator=optional(ge(1)),
    )  # fmt: skip
    fuse_qkv: bool = field(
        default=True, help="one matrix for queries, keys and values (one process, without LoRA only)"
    )
    cpu_offload: bool = field(
        default=False, help="keep trained weights and optimizer state in CPU memory, and update them there (CUDA)"
    )
    lora_rank: int = field(
        default=0,
        help="train adapters of this rank beside frozen weights (LoRA); 0 trains the weights",
        validator=ge(0),
    )
    lora_alpha: float = field(default=16.0, help="adapters count alpha / rank", validator=gt(0))
    lora_targets: tuple[str, ...] = field(
        default=LORA_TARGETS, help=f"matrices with an adapter, of {', '.join(LORA_TARGETS)}",
        validator=deep_iterable(in_(LORA_TARGETS)),
    )  # fmt: skip
