"""The generator's settings, torch-free: the keys beside `generator: {use: vllm}`.

generator:
  use: vllm
  gpu_memory_utilization: 0.6
  max_num_seqs: 512
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import and_, ge, gt, in_, le, optional

from forge_host.api import field

DTYPES = ("auto", "bfloat16", "float16", "float32")


@attrs.frozen(kw_only=True)
class VLLMConfig:
    """How vLLM runs. What is null is chosen by the device or taken from the rest of the run's configuration."""

    dtype: str = field(default="bfloat16", help="dtype of weights and activations", validator=in_(DTYPES))
    max_model_len: int | None = field(
        default=None,
        help="longest prompt + response; null takes training.seq_len",
        unit="tokens",
        validator=optional(ge(2)),
    )
    max_num_seqs: int = field(default=256, help="responses decoded at once; more wait", validator=ge(1))
    max_num_batched_tokens: int | None = field(
        default=None,
        help="tokens of one forward pass, prompts included; null is vLLM's choice",
        unit="tokens",
        validator=optional(ge(1)),
    )
    gpu_memory_utilization: float | None = field(
        default=None,
        help="fraction of each GPU that vLLM may take; null is 0.9, or 0.4 when another role shares the GPU",
        validator=optional(and_(gt(0), le(1))),
    )
    kv_cache_gb: float | None = field(
        default=None,
        help="memory of the KV cache; null is what gpu_memory_utilization leaves, on CPU what the run can use, at most "
        "a quarter of the free memory and 4",
        unit="GiB",
        validator=optional(gt(0)),
    )
    block_size: int | None = field(
        default=None,
        help="tokens of one block of the KV cache; null is vLLM's choice, on CPU 32",
        unit="tokens",
        validator=optional(ge(1)),
    )
    enable_prefix_caching: bool = field(default=True, help="the responses of one prompt share its keys and values")
    enforce_eager: bool | None = field(
        default=None, help="no compilation, no CUDA graphs; null is true on CPU and false on GPU"
    )
    sleep_between_steps: bool = field(
        default=False,
        help="give the GPU's memory to the trainer while it trains (vLLM's sleep mode, level 1: the KV cache is freed, "
        "the weights wait in host memory); only with max_policy_age 0 and sync_interval 1",
    )
    recompute_in_flight: bool = field(
        default=False,
        help="after new weights, recompute the keys and values of unfinished responses; else the old weights' stay",
    )
    threads: int | None = field(
        default=None,
        help="CPU threads; null takes every core this process may use, shared by the replicas",
        validator=optional(ge(1)),
    )
    seed: int | None = field(default=None, help="seed of sampling; null takes training.seed")
    load_format: str = field(
        default="auto", help="how vLLM reads the first weights; dummy makes random ones, for benchmarks"
    )
    allow_untested_version: bool = field(default=False, help="start with a vLLM release that was not tested")
    engine_args: Mapping[str, Any] = field(
        factory=dict, help="further arguments of vLLM's EngineArgs, by name (its own statistics are never logged)"
    )
