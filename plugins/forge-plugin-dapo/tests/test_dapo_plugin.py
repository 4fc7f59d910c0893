"""What DAPO owes: contracts of the plugin, its loss and its sampler, and the paper's setting from the name alone."""

from __future__ import annotations

import pytest

from forge_host.testing import LossContract, PluginContract, SamplerContract, load_component
from forge_host.testing.sampler import group_of


class TestPlugin(PluginContract):
    plugin = "dapo"


class TestDAPOLoss(LossContract):
    ref = "dapo/dapo"


class TestDynamicSampler(SamplerContract):
    ref = "dapo/dynamic"
    keeps = [[1.0, 0.0], [-1.0, 1.0, 1.0], [None, 1.0, 0.0]]
    drops = [[1.0, 1.0], [0.0, 0.0, 0.0], [None, 1.0], [0.7, 0.7, 0.7]]


class TestDynamicSamplerWithAThreshold(SamplerContract):
    ref = "dapo/dynamic"
    config = {"right_from": 0.5}
    keeps = [[1.0, 0.0]]
    drops = [[0.6, 1.0], [0.0, 0.4]]


def test_name_alone_is_the_paper() -> None:
    parts = load_component("algorithm", "dapo").build()
    assert parts.sampling.n == 16 and parts.kl.beta == 0 and parts.aggregation.mode == "token-mean"
    assert parts.loss.config == {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
    assert parts.sampler.ref == "dapo/dynamic" and [use.ref for use in parts.shaping] == ["dapo/soft-overlong"]


def test_paper_zone_is_a_fifth_of_the_budget() -> None:
    punishment = load_component("reward", "dapo/soft-overlong")
    assert punishment(length=16384, max_tokens=20480) == 0
    assert punishment(length=18432, max_tokens=20480) == -0.5
    assert punishment(length=20480, max_tokens=20480) == -1


def test_zone_larger_than_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_tokens is 100, above max_tokens 50"):
        load_component("reward", "dapo/soft-overlong", {"cache_tokens": 100})(length=1, max_tokens=50)


def test_length_penalty_does_not_make_equal_answers_differ() -> None:
    group = group_of([1.0, 0.5], part="soft-overlong")
    shaped = [{"math": 1.0, "soft-overlong": 0.0}, {"math": 1.0, "soft-overlong": -0.5}]
    import attrs

    episodes = tuple(attrs.evolve(e, parts=p) for e, p in zip(group.episodes, shaped, strict=True))
    group = attrs.evolve(group, episodes=episodes)
    assert not load_component("sampler", "dapo/dynamic").verdict(group).keep
    assert not load_component("sampler", "dapo/dynamic", {"part": "math"}).verdict(group).keep
    assert load_component("sampler", "dapo/dynamic", {"ignore": []}).verdict(group).keep
