"""Which attention a trainer computes with: dense blocks, flex attention or flash attention.

name = choose_attention(config, training, device)       # "sdpa", "flex" or "varlen"
inner, plan = kernels(name)         # the configuration TorchTitan builds, and plan(segments, device) for its masks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_host.config.schema import TrainingConfig
from forge_host.errors import UsageError
from forge_plugin_titan.config import TitanConfig


def choose_attention(config: TitanConfig, training: TrainingConfig, device: torch.device) -> str:
    """`trainer.attention` with `auto` decided.

    Raises:
        UsageError: it cannot run on the device, in the dtype, or compiled.
    """
    name, cuda = config.attention, device.type == "cuda"
    if name == "auto":
        name = "flex" if cuda else "sdpa"
    if name == "flex" and not cuda:
        raise UsageError(
            "flex attention has no backward pass on CPU", where="trainer.attention", fix="use auto or sdpa"
        )
    if name == "varlen" and not cuda:
        raise UsageError("flash attention needs a GPU", where="trainer.attention", fix="use auto or sdpa")
    if name == "varlen" and training.dtype == "float32":
        raise UsageError(
            "flash attention does not compute in float32", where="trainer.attention",
            fix="use flex, or training.dtype: bfloat16",
        )  # fmt: skip
    if training.compile and name == "sdpa":
        raise UsageError(
            "training.compile needs flex or varlen attention, which need a GPU; dense blocks differ in number and size",
            fix="set training.compile: false" if not cuda else "set trainer.attention: flex",
        )
    return name


def kernels(name: str) -> tuple[Any, Callable[..., Any]]:
    """The inner attention's configuration, and what makes its masks from a layout's segments."""
    if name == "flex":
        from forge_plugin_titan.flex import SegmentFlex, flex_mask

        return SegmentFlex.Config(), flex_mask
    if name == "varlen":
        from forge_plugin_titan.varlen import SegmentVarlen, varlen_plan

        return SegmentVarlen.Config(), varlen_plan
    from forge_plugin_titan.attention import BlockAttention, block_plan

    return BlockAttention.Config(), block_plan
