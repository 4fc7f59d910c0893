"""Which attention a trainer computes with: dense blocks, flex attention or flash attention.

name = choose_attention(config, training, device)       # "sdpa", "flex" or "varlen"
inner, plan = kernels(name)         # the configuration TorchTitan builds, and plan(layout, device) for its masks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from forge_host.config.schema import TrainingConfig
from forge_host.errors import UsageError
from forge_plugin_titan.config import TitanConfig
from forge_plugin_titan.layout import Layout


@attrs.frozen
class Choice:
    attention: str
    compiled: bool


def choose(config: TitanConfig, training: TrainingConfig, device: torch.device, *, trains: bool = True) -> Choice:
    """`trainer.attention` with `auto`, and `training.compile` with null, decided.

    Args:
        trains: False for a frozen model, which is compiled only if asked for.

    Raises:
        UsageError: it cannot run on the device, in the dtype, or compiled.
    """
    name, cuda, compiled = config.attention, device.type == "cuda", training.compile
    if name == "auto":
        name = "sdpa" if not cuda else "flex" if training.dtype == "float32" else "varlen"
    if compiled is None:
        compiled = cuda and trains and name != "sdpa"
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
    if compiled and name == "sdpa":
        raise UsageError(
            "training.compile needs flex or varlen attention, which need a GPU; dense blocks differ in number and size",
            fix="set training.compile: false" if not cuda else "set trainer.attention: varlen",
        )
    return Choice(name, compiled)


def allow_recompiling() -> None:
    """Packed lengths differ from step to step: sizes that happen to be equal must not be taken for the same one, and
    a few versions of a block are no reason to stop."""
    import torch._dynamo.config as dynamo
    import torch.fx.experimental._config as shapes

    shapes.use_duck_shape = False
    dynamo.recompile_limit = max(dynamo.recompile_limit, 64)


def kernels(name: str) -> tuple[Any, Callable[[Layout, torch.device], Any]]:
    """The inner attention's configuration, and what makes its masks from a layout."""
    if name == "flex":
        from forge_plugin_titan.flex import SegmentFlex, flex_mask

        return SegmentFlex.Config(), lambda layout, device: flex_mask(layout.segments, device, layout.length)
    if name == "varlen":
        from forge_plugin_titan.varlen import SegmentVarlen, varlen_plan

        return SegmentVarlen.Config(), lambda layout, device: varlen_plan(layout.segments, device, layout.length)
    from forge_plugin_titan.attention import BlockAttention, block_plan

    return BlockAttention.Config(), lambda layout, device: block_plan(layout.segments, device)
