"""Names to components: qualified, bare, direct, ambiguous, unknown."""

from __future__ import annotations

import pickle

import pytest

from forge_host.errors import PluginError
from forge_host.plugins import PluginHost
from forge_host.plugins.references import component_name
from forge_host.testing.dists import HEADER, reward_source
from forge_host.types import Use

FILE = """
class MyReward:
    def __call__(self, response):
        return float(len(response))

def helper(response):
    return 1.0
"""


def test_bare_and_qualified_names(install):
    install("words", reward_source("short"))
    host = PluginHost.load(["words"], strict=True)
    assert host.find("reward", "short") == host.find("reward", "words/short")


def test_two_providers_are_an_error_that_names_both(install):
    install("left", reward_source("same"))
    install("right", reward_source("same"), version="2.5")
    host = PluginHost.load(["left", "right"], strict=True)
    with pytest.raises(PluginError) as error:
        host.find("reward", "same")
    text = str(error.value)
    assert "forge-plugin-left 1.0" in text and "forge-plugin-right 2.5" in text
    assert "write `left/same` or `right/same`" in text
    assert host.find("reward", "right/same").plugin == "right"


def test_unknown_component_has_near_matches_of_its_kind(install):
    install("words", reward_source("shortness"))
    host = PluginHost.load(["words"], strict=True)
    with pytest.raises(PluginError, match="no reward is named `shortnes`; did you mean `shortness`"):
        host.find("reward", "shortnes")
    with pytest.raises(PluginError, match="no reward is named `words/shortnes`; did you mean `words/shortness`"):
        host.find("reward", "words/shortnes")
    with pytest.raises(PluginError, match="did you mean `words/shortness`"):
        host.find("reward", "word/shortness")
    with pytest.raises(PluginError, match="`forge-host components list reward`"):
        host.find("reward", "qqqqqq")


def test_a_name_of_another_kind_is_said_to_be_one(install):
    install("words", reward_source("shortness"))
    host = PluginHost.load(["words"], strict=True)
    with pytest.raises(PluginError, match=r"no loss is named `shortness`; .* is a reward \(forge-plugin-words"):
        host.find("loss", "shortness")
    with pytest.raises(PluginError, match="`los` is not a kind of component; did you mean `loss`"):
        host.find("los", "shortness")  # type: ignore[arg-type]


def test_newer_components_of_a_loadable_plugin_are_refused(install):
    spec = "ComponentSpec('x', 'a:b', 's', since='1.7')"
    install("ahead", HEADER + f"@hookimpl\ndef forge_rewards(host): return [{spec}]")
    with pytest.raises(PluginError, match="works from host API 1.7 on, this host has 1.0; upgrade forge-host"):
        PluginHost.load(["ahead"]).find("reward", "ahead/x")


def test_file_reference(tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    host = PluginHost.load(())
    entry = host.find("reward", "./rewards.py:MyReward")
    assert entry.spec.name == "my-reward"
    assert entry.ref == f"{tmp_path}/rewards.py:MyReward"  # absolute: good in any process
    reward = host.build("reward", Use("rewards.py:MyReward"))
    assert reward(response="four") == 4.0
    assert type(pickle.loads(pickle.dumps(reward))) is type(reward)
    assert type(reward).__module__.startswith("forge_local_rewards_")
    assert type(host.build("reward", Use(entry.ref))) is type(reward)


def test_an_edited_file_is_a_new_module(tmp_path):
    path = tmp_path / "r.py"
    host = PluginHost.load(())
    for value in ("1.0", "2.0"):  # within one second, which byte-code caches do not notice
        path.write_text(f"def score(response): return {value}")
        assert host.build("reward", Use(f"{path}:score"))(response="") == float(value)


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("rewrads.py:MyReward", ["does not exist", "did you mean `rewards.py`"]),
        ("rewards.py", ["names a file and nothing in it", "`MyReward`, `helper`"]),
        ("rewards.py:", ["names a file and nothing in it"]),
        ("rewards.py:MyRewrd", ["has no `MyRewrd`", "did you mean `MyReward`"]),
        ("broken.py:X", ["ZeroDivisionError", "broken.py:2"]),
        ("needs.py:X", ["No module named 'nowhere'", "install the package that provides `nowhere`"]),
        ("syntax.py:X", ["SyntaxError"]),
        ("no_such_pkg.losses:X", ["No module named 'no_such_pkg'"]),
        ("json:Dumps", ["`json` has no `Dumps`", "did you mean `dumps`"]),
        (":X", ["not a reference", "PLUGIN/NAME"]),
    ],
)
def test_bad_direct_references(tmp_path, monkeypatch, ref, words):
    (tmp_path / "rewards.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("\n1/0")
    (tmp_path / "needs.py").write_text("import nowhere")
    (tmp_path / "syntax.py").write_text("def f(:")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError) as error:
        PluginHost.load(()).build("reward", Use(ref))
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_module_reference():
    import json

    host = PluginHost.load(())
    assert host.build("reward", Use("json:dumps")) is json.dumps
    assert host.find("reward", "json.encoder:JSONEncoder").spec.name == "json-encoder"


@pytest.mark.parametrize(
    ("python", "name"),
    [
        ("MyReward", "my-reward"),
        ("HTTPGet2", "http-get2"),
        ("my_func", "my-func"),
        ("A.In", "in"),
        ("2x", "c-2x"),
    ],
)
def test_component_name(python, name):
    assert component_name(python) == name
