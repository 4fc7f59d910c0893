"""torchforge's path of `ReinforceLoss`: `from forge_host.losses.reinforce_loss import ReinforceLoss`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "ReinforceLoss":
        from forge_host.losses import load

        return load(name)
    raise AttributeError(f"module 'forge_host.losses.reinforce_loss' has no attribute {name!r}")
