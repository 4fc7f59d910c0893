"""torchforge's path of `SimpleGRPOLoss`: `from forge_host.losses.grpo_loss import SimpleGRPOLoss`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "SimpleGRPOLoss":
        from forge_host.losses import load

        return load(name)
    raise AttributeError(f"module 'forge_host.losses.grpo_loss' has no attribute {name!r}")
