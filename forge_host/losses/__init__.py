"""torchforge's loss classes under their old import path; they live in plugins.

    from forge_host.losses import ReinforceLoss, SimpleGRPOLoss

    loss = SimpleGRPOLoss(beta=0.1)(logprobs=lp, ref_logprobs=ref, advantages=a, padding_mask=mask)   # 0-dim tensor
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "SimpleGRPOLoss": ("forge_plugin_grpo", "losses", "forge-plugin-grpo"),
    "ReinforceLoss": ("forge_plugin_reinforce", "losses", "forge-plugin-reinforce"),
}


def load(name: str) -> Any:
    """The class `name`; ImportError that says what to install when its plugin is missing."""
    package, module, distribution = _HOMES[name]
    try:
        return getattr(import_module(f"{package}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"{name} is in a plugin that is not installed; pip install {distribution}") from error


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return load(name)
    raise AttributeError(f"module 'forge_host.losses' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
