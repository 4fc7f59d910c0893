"""The example reward, held to the contract every plugin and reward is held to."""

from __future__ import annotations

import pytest

from forge_host.testing import PluginContract, RewardContract, load_component


class TestPlugin(PluginContract):
    plugin = "brevity"


class TestReward(RewardContract):
    reward = "brevity"
    config = {"budget": 100}
    accept = [("short", None), ("", None)]
    reject = [("long " * 100, None)]
    hacks_allowed = ("echo", "tags", "target words")  # saying nothing is what it pays for


@pytest.mark.parametrize(("length", "score"), [(0, 1.0), (50, 0.5), (100, 0.0), (500, 0.0)])
def test_score_falls_with_the_length(length: int, score: float) -> None:
    assert load_component("reward", "brevity", {"budget": 100})(length=length) == score
