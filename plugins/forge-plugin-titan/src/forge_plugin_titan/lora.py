"""LoRA: TorchTitan's converter puts adapters beside frozen matrices; merging and switching them off is here.

    config = with_adapters(config, TitanConfig(lora_rank=8))    # before the model is built
    with adapters_off(model): ...                               # the reference model: what was loaded
    full = merged({"wq.weight": w, "wq.lora_a.weight": a, "wq.lora_b.weight": b}, scaling=2.0)

The converter is `torchtitan.components.lora`; it has no way back to plain weights, which a generator needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from forge_host.errors import UsageError
from forge_plugin_titan.config import TitanConfig

A, B = "lora_a.weight", "lora_b.weight"


def with_adapters(config: Any, settings: TitanConfig) -> Any:
    """The model's configuration with an adapter at every target, everything else frozen; unchanged for rank 0.

    Raises:
        UsageError: no targets.
    """
    if not settings.lora_rank:
        return config
    if not settings.lora_targets:
        raise UsageError("lora_targets is empty, nothing would be trained", where="trainer", fix="name a target")
    from torchtitan.components.lora import LoRAConverter

    converter = LoRAConverter.Config(
        rank=settings.lora_rank, alpha=settings.lora_alpha, target_modules=list(settings.lora_targets)
    )
    return LoRAConverter(converter).convert(config)


def is_adapter(name: str) -> bool:
    return name.endswith((A, B))


def fresh(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Adapters that change nothing yet: A uniform as `torch.nn.Linear` draws it, B 0. The same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name in sorted(shapes):
        bound = shapes[name][1] ** -0.5 if name.endswith(A) else 0.0
        out[name] = torch.empty(shapes[name]).uniform_(-bound, bound, generator=generator)
    return out


def scaling(settings: TitanConfig) -> float:
    return settings.lora_alpha / settings.lora_rank if settings.lora_rank else 0.0


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes what its frozen weights alone do."""
    modules = [m for m in model.modules() if hasattr(m, "_lora_scaling")]
    before = [m._lora_scaling for m in modules]
    for module in modules:
        module._lora_scaling = 0.0  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module._lora_scaling = value


def merged(tensors: Mapping[str, Tensor], scaling: float) -> dict[str, Tensor]:
    """Full weights W + scaling B A of one layer's tensors, in float32 where there is an adapter, without adapters."""
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if is_adapter(name):
            continue
        base = name.removesuffix("weight")
        if base + A in tensors:
            a, b = tensors[base + A].float(), tensors[base + B].float()
            value = torch.addmm(value.float(), b, a, alpha=scaling)
        out[name] = value
    return out
