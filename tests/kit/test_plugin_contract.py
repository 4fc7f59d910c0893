"""PluginContract catches what it says it catches: each bad plugin here fails exactly the test made for it."""

from __future__ import annotations

import os
import sys

import pytest

from forge_host.errors import PluginError
from forge_host.testing import PluginContract, load_component
from forge_host.testing.dists import write_dist

DECLARATION = """
from forge_host.api import ComponentSpec, hookimpl
FORGE_API = "1.0"
{extra}
@hookimpl
def forge_rewards(host):
    return [ComponentSpec("kit", "{package}.reward:Kit", "{summary}")]
"""
REWARD = """
import attrs
from forge_host.api import field

@attrs.frozen(kw_only=True)
class Kit:
    budget: int = field(default=10, help="length that scores 0", unit="characters")
    timeout: float = field(default=1.0, help="deadline", unit="s")

    def __call__(self, response):
        return float(len(response) < self.budget)
"""
TESTS = sorted(name for name in vars(PluginContract) if name.startswith("test_"))


@pytest.fixture
def kit(tmp_path, monkeypatch, request):
    """Installs the plugin `kit` with some sources replaced; gives its contract. A fresh package name each time."""

    def install(declaration=DECLARATION, reward=REWARD, extra="", summary="a reward", **attributes):
        package = f"kit_{abs(hash(request.node.nodeid))}"
        sources = {
            package: declaration.format(package=package, extra=extra, summary=summary),
            f"{package}.reward": reward,
            "ray": "# stands for a heavy module",
        }
        write_dist(tmp_path, "forge-plugin-kit", {"kit": package}, sources)
        return type("TestKit", (PluginContract,), {"plugin": "kit", **attributes})()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    yield install
    for name in [name for name in sys.modules if name.startswith(("kit_", "ray"))]:
        del sys.modules[name]


def failures(contract):
    """Names of the contract's tests that fail."""
    failed = []
    for name in TESTS:
        try:
            getattr(contract, name)()
        except (AssertionError, PluginError):  # PluginError: the host refuses the plugin as a whole
            failed.append(name.removeprefix("test_"))
    return failed


def test_a_good_plugin_passes(kit):
    assert failures(kit()) == []
    assert load_component("reward", "kit/kit", {"budget": 3})(response="abcd") == 0.0


def test_heavy_declaration(kit):
    assert failures(kit(extra="import ray")) == ["declaration_is_light"]


def test_declaration_with_state(kit):
    stateful = DECLARATION.replace('"{summary}")', 'f"call {{len(CALLS)}}")').replace(
        "    return", "    CALLS.append(1)\n    return"
    )
    assert failures(kit(stateful, extra="CALLS = []")) == ["declares_the_same_twice"]


def test_refused_plugin(kit):
    """Nothing else can be said about a plugin that the host refuses."""
    failed = failures(kit(DECLARATION.replace('FORGE_API = "1.0"', 'FORGE_API = "9.0"')))
    assert "is_accepted" in failed and "declaration_is_light" not in failed


def test_target_that_is_not_there(kit):
    failed = failures(kit(reward="Other = 1"))
    assert {"targets_resolve", "validates"} <= set(failed)
    with pytest.raises(AssertionError, match="has no `Kit`"):
        kit(reward="Other = 1").test_targets_resolve()


def test_component_left_out_is_not_imported(kit):
    assert failures(kit(reward="raise ImportError('no such GPU')", not_here=("reward:kit",))) == []


def test_class_that_takes_any_key(kit):
    anything = "class Kit:\n    def __init__(self, **keys): pass\n    def __call__(self, response): return 0.0\n"
    assert failures(kit(reward=anything)) == ["unknown_key_is_rejected"]


def test_field_without_help(kit):
    failed = failures(
        kit(reward=REWARD.replace('field(default=10, help="length that scores 0", unit="characters")', "10"))
    )
    assert failed == ["every_field_has_help", "validates"]


def test_quantity_without_unit(kit):
    assert failures(kit(reward=REWARD.replace(', unit="s"', ""))) == ["every_field_has_help"]


def test_value_that_a_file_cannot_hold(kit):
    changing = REWARD.replace(
        "budget: int = field(default=10,", "budget: int = field(default=10, converter=lambda x: x + 1,"
    )
    assert "config_round_trips" in failures(kit(reward=changing))


def test_class_that_does_not_pickle_by_reference(kit):
    local = REWARD + "\nKit.__qualname__ = 'make.<locals>.Kit'\n"
    assert failures(kit(reward=local)) == ["pickles_by_reference"]


def test_required_settings_are_given_in_configs(kit):
    required = REWARD.replace("default=10, ", "")
    assert "config_round_trips" in failures(kit(reward=required))
    assert failures(kit(reward=required, configs={"reward:kit": {"budget": 5}})) == []


def test_algorithm_that_names_what_is_not_there(kit):
    declaration = DECLARATION.replace("forge_rewards", "forge_algorithms")
    algorithm = (
        "import attrs\nfrom forge_host.api import AlgorithmParts, Use\n"
        "@attrs.frozen\nclass Kit:\n"
        "    def build(self):\n        return AlgorithmParts(loss=Use('no-such-loss'), advantage=Use('no-such'))\n"
    )
    assert failures(kit(declaration, algorithm)) == ["algorithms_name_what_exists"]
