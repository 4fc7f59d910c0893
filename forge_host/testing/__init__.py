"""The conformance kit for plugin authors: subclass a contract, name your component, run pytest.

    from forge_host.testing import PluginContract, RewardContract

    class TestPlugin(PluginContract):
        plugin = "brevity"

    class TestReward(RewardContract):
        reward = "brevity"

Each name is imported when it is first used, so that pytest, which loads this package in every run through the
`pytest11` entry point, pays for nothing it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_host.testing.advantage import AdvantageContract
    from forge_host.testing.component import PluginContract, load_component
    from forge_host.testing.environment import EnvironmentContract, play
    from forge_host.testing.evaluate import evaluate_advantage, evaluate_loss
    from forge_host.testing.fakes import FakeGenerator, FakeTrainer
    from forge_host.testing.loss import LossContract
    from forge_host.testing.reward import RewardContract
    from forge_host.testing.sampler import SamplerContract
    from forge_host.testing.tracker import TrackerContract
    from forge_host.testing.transport import TransportContract

_HOMES = {
    "AdvantageContract": "advantage",
    "EnvironmentContract": "environment",
    "FakeGenerator": "fakes",
    "FakeTrainer": "fakes",
    "LossContract": "loss",
    "PluginContract": "component",
    "RewardContract": "reward",
    "SamplerContract": "sampler",
    "TrackerContract": "tracker",
    "TransportContract": "transport",
    "evaluate_advantage": "evaluate",
    "evaluate_loss": "evaluate",
    "load_component": "component",
    "play": "environment",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forge_host.testing' has no attribute {name!r}")
    return getattr(import_module(f"forge_host.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


__all__ = [
    "AdvantageContract", "EnvironmentContract", "FakeGenerator", "FakeTrainer", "LossContract", "PluginContract",
    "RewardContract", "SamplerContract", "TrackerContract", "TransportContract", "evaluate_advantage", "evaluate_loss",
    "load_component", "play",
]  # fmt: skip
