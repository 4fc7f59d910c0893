"""Settings of the `titan` trainer that are not the run's own (`training:` and `parallelism:` hold those). No torch.

    trainer: {use: titan, attention: sdpa, share_prompts: false}
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, in_, optional

from forge_host.types import field


@attrs.frozen(kw_only=True)
class TitanConfig:
    """How the trainer computes; none of these changes what is learned beyond rounding."""

    attention: str = field(
        default="auto",
        help="auto, sdpa (dense blocks; any device) or flex (compiled, CUDA); auto is flex on CUDA and sdpa on CPU",
        validator=in_(("auto", "sdpa", "flex")),
    )
    share_prompts: bool = field(
        default=True, help="compute a prompt once for all its responses in a micro-batch; same gradients"
    )
    publish_dtype: str | None = field(
        default=None,
        help="dtype of published and exported weights; null is training.dtype",
        validator=optional(in_(("bfloat16", "float16", "float32"))),
    )
    logprob_chunk: int | None = field(
        default=None, help="tokens whose logits exist at a time; null sizes it by memory", unit="tokens",
        validator=optional(ge(1)),
    )  # fmt: skip
    pad_to: int | None = field(
        default=None,
        help="packed length is filled up to a multiple of this; null is 128 with flex (fewer compilations), else 1",
        unit="tokens",
        validator=optional(ge(1)),
    )
    num_threads: int | None = field(
        default=None, help="CPU threads of one process; null divides the cores among its host's ranks",
        unit="threads", validator=optional(ge(1)),
    )  # fmt: skip
    fuse_qkv: bool = field(default=True, help="one matrix for queries, keys and values (single process only)")
