"""Level 2: components built from plain values, whatever their target is."""

from __future__ import annotations

import sys

import attrs
import pytest

from forge_host.errors import PluginError, UsageError
from forge_host.plugins import PluginHost
from forge_host.testing.dists import HEADER
from forge_host.types import Use

TARGETS = """
import attrs
import torch
from attrs.validators import ge
from forge_host.api import RunError, field

@attrs.frozen
class Config:
    size: int = field(default=3, help="size", validator=ge(1))

class Heavy:
    def __init__(self, config):
        self.config = config

@attrs.frozen
class Light:
    scale: float = field(default=1.0, help="scale")

class Module(torch.nn.Module):
    def __init__(self, clip_range: float = 0.2, beta: float = 0.1, *, layers: int):
        super().__init__()
        self.clip_range, self.beta, self.layers = clip_range, beta, layers
    def forward(self, logprobs):
        return logprobs * self.beta

class Refuses:
    def __init__(self, low: int = 0):
        raise ValueError("low is above high.")

class Crashes:
    def __init__(self):
        raise KeyError("oops")

class Stops:
    def __init__(self):
        raise RunError("the disk is full")

def plain(response):
    return 1.0
"""
CONFIGS = """
import attrs
from attrs.validators import ge
from forge_host.api import field

@attrs.frozen
class Config:
    size: int = field(default=3, help="size", validator=ge(1))

class NotAttrs: ...
"""
DECLARATION = (
    HEADER
    + """
@hookimpl
def forge_rewards(host):
    t = "fake_kit.targets:"
    c = "fake_kit.configs:"
    return [
        ComponentSpec("heavy", t + "Heavy", "s", config=c + "Config"),
        ComponentSpec("light", t + "Light", "s"),
        ComponentSpec("module", t + "Module", "s"),
        ComponentSpec("refuses", t + "Refuses", "s"),
        ComponentSpec("crashes", t + "Crashes", "s"),
        ComponentSpec("stops", t + "Stops", "s"),
        ComponentSpec("plain", t + "plain", "s"),
        ComponentSpec("wants", t + "plain", "s", requires=("json", "not_there_a", "not_there_b.sub")),
        ComponentSpec("gone", "fake_kit.nothing:X", "s"),
        ComponentSpec("undeclared", t + "Heavy", "s"),
        ComponentSpec("bad-config", t + "Heavy", "s", config=c + "NotAttrs"),
    ]
"""
)


@pytest.fixture
def host(install):
    modules = {"fake_kit.targets": TARGETS, "fake_kit.configs": CONFIGS}
    install("kit", DECLARATION, modules=modules)
    return PluginHost.load(["kit"], strict=True)


def build(host, ref, **values):
    return host.build("reward", Use(f"kit/{ref}", values))


def test_separate_config_class(host):
    heavy = build(host, "heavy", size=5)
    assert type(heavy).__name__ == "Heavy" and heavy.config.size == 5
    assert host.config_class(host.find("reward", "heavy")).__module__ == "fake_kit.configs"


def test_separate_config_is_checked_without_importing_the_target(host):
    config = host.configure("reward", Use("heavy", {"size": 2}))
    assert config.size == 2
    with pytest.raises(UsageError, match="reward `kit/heavy`: `size` must be >= 1, got 0"):
        build(host, "heavy", size=0)
    assert "fake_kit.configs" in sys.modules and "fake_kit.targets" not in sys.modules


def test_a_configuration_that_its_spec_does_not_name(host):
    with pytest.raises(UsageError, match=r"`kit/undeclared`: key `config` is required; .*ComponentSpec\(..., config="):
        build(host, "undeclared")


def test_attrs_class(host):
    assert build(host, "light", scale="2e0").scale == 2.0
    assert build(host, "light").scale == 1.0
    assert attrs.has(host.config_class(host.find("reward", "light")))
    with pytest.raises(UsageError, match="reward `kit/light`: key `scael` is unknown; did you mean `scale`"):
        build(host, "light", scael=1)


def test_module_takes_the_arguments_of_its_init(host):
    module = build(host, "module", layers=2, beta="1e-2")
    assert (module.clip_range, module.beta, module.layers) == (0.2, 0.01, 2)
    assert host.config_class(host.find("reward", "module")) is None
    for values, message in (
        ({}, "key `layers` is required; set it, or give the argument a default"),
        ({"layers": "2"}, "`layers` must be int, got '2'"),
        ({"layers": 2, "beat": 1}, "key `beat` is unknown; did you mean `beta`"),
    ):
        with pytest.raises(UsageError, match=f"reward `kit/module`: {message}"):
            build(host, "module", **values)


def test_function_takes_no_settings(host):
    assert build(host, "plain")("x") == 1.0
    with pytest.raises(UsageError, match="reward `kit/plain`: key `scale` is unknown; it takes no settings"):
        build(host, "plain", scale=1)


def test_what_a_component_raises_while_it_is_made(host):
    with pytest.raises(UsageError, match="^reward `kit/refuses`: low is above high$"):
        build(host, "refuses")
    with pytest.raises(PluginError, match=r"`kit/crashes` \(forge-plugin-kit 1.0\): making it raised KeyError: 'oops'"):
        build(host, "crashes")
    with pytest.raises(Exception, match="^the disk is full$") as error:
        build(host, "stops")
    assert error.value.exit_code == 4


def test_missing_requirements_are_all_named_before_anything_is_imported(host):
    with pytest.raises(PluginError) as error:
        build(host, "wants")
    text = str(error.value)
    assert "reward `kit/wants` (forge-plugin-kit 1.0): it needs `not_there_a` and `not_there_b.sub`" in text
    assert "pip install not_there_a not_there_b" in text
    assert "fake_kit.targets" not in sys.modules


def test_broken_targets(host):
    with pytest.raises(PluginError, match=r"`kit/gone` \(forge-plugin-kit 1.0\): `fake_kit.nothing:X` cannot be imp"):
        build(host, "gone")
    with pytest.raises(PluginError, match="config `fake_kit.configs:NotAttrs` is not an attrs class"):
        build(host, "bad-config")
