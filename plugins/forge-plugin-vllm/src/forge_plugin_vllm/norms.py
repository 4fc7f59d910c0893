"""vLLM's own compiled RMS norms on a CPU, where it computes them by six PyTorch operations each.

    arguments |= register_norms()          # before vLLM is started with them, in the process that runs the model

vLLM 0.32 builds these kernels for CPUs and offers them to GPUs only (`vllm/kernels/vllm_c.py`). A norm of 32 rows of
576 takes 8 us with them and 38 us without, on one core.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

PROVIDER = "forge_cpu"


def register_norms() -> dict[str, Any]:
    """Offer the kernels to vLLM, once. Returns the argument of `EngineArgs` that prefers them; {} if there are none."""
    import torch
    from vllm import ir
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    if not hasattr(torch.ops._C, "rms_norm") or not hasattr(torch.ops._C, "fused_add_rms_norm"):
        return {}
    if PROVIDER not in ir.ops.rms_norm.impls:
        ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_plain)(rms_norm)
        ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=_plain_both, inplace=True)(fused_add_rms_norm)
    return {"ir_op_priority": {"rms_norm": [PROVIDER], "fused_add_rms_norm": [PROVIDER]}}


def _fits(x: Tensor, weight: Tensor | None, variance_size: int | None) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype and x.is_contiguous()


def _plain(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return _fits(x, weight, variance_size)


def _plain_both(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _fits(x, weight, variance_size) and x_residual.is_contiguous()


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """x [..., D] over its root mean square, times weight [D]."""
    import torch

    output = torch.empty_like(x)
    torch.ops._C.rms_norm(output, x, weight, epsilon)
    return output


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of x + x_residual, and that sum; both in place."""
    import torch

    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
