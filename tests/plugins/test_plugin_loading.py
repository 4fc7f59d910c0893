"""Level 1: what a host makes of good and broken plugins. Also run under pluggy 1.6 by `test_plugin_pluggy16`."""

from __future__ import annotations

import sys

import pytest

from forge_host.errors import PluginError
from forge_host.plugins import PluginHost
from forge_host.plugins.deprecation import ForgeRemovedIn2Warning, removed_in_2
from forge_host.testing.dists import HEADER, reward_source


def only(*names, **more):
    return PluginHost.load(names, **more)


def record(host, name):
    return next(record for record in host.records if record.name == name)


def reason(name):
    """Why browsing did not load the plugin; a run must refuse it with the same words."""
    found = record(only(name), name)
    with pytest.raises(PluginError) as error:
        only(name, strict=True)
    for part in (f"plugin `{name}`", str(found.origin), found.origin.entry_point, found.reason, "plugins doctor"):
        assert part in str(error.value)
    assert error.value.exit_code == 3
    return found.state, found.reason


def test_a_good_plugin(install):
    install("good", reward_source("short"))
    host = only("good", strict=True)
    found = record(host, "good")
    assert (found.state, found.api, found.hooks) == ("loaded", "1.0", ("forge_rewards",))
    assert found.components == ("reward:short",)
    assert 0 < found.import_seconds < 5
    assert [entry.ref for entry in host.entries("reward") if entry.plugin == "good"] == ["good/short"]


def test_the_built_in_plugin_is_always_there():
    host = PluginHost.load((), strict=True)
    assert [r.name for r in host.records if r.state == "loaded"] == ["builtin"]
    assert host.find("dataset", "arithmetic").origin.distribution == "forge-host"
    with pytest.raises(PluginError, match="cannot be blocked"):
        PluginHost.load(block=["builtin"])


@pytest.mark.parametrize(
    "source",
    [
        "class P(ForgePlugin):\n    @hookimpl\n    def forge_rewards(self, host): return []",
        "class Q(ForgePlugin):\n    @hookimpl\n    def forge_rewards(self, host): return []\nP = Q()",
        "class Q:\n    FORGE_API = '1.0'\n    @hookimpl\n    def forge_rewards(self): return []\nclass N:\n    P = Q",
    ],
    ids=["class", "instance", "nested without host argument"],
)
def test_entry_point_may_name_a_class_or_an_object(install, source):
    attribute = "N.P" if "class N" in source else "P"
    install("object", HEADER + source, entry_points={"object": f"fake_object:{attribute}"})
    assert record(only("object", strict=True), "object").hooks == ("forge_rewards",)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module_here", ["ModuleNotFoundError", "no_such_module_here", "fake_bad.py:1"]),
        ("raise RuntimeError('boom')", ["importing it raised RuntimeError: boom", "fake_bad.py:1"]),
        ("import sys; sys.exit(7)", ["SystemExit: 7"]),
        ("def f(:", ["SyntaxError", "fake_bad.py"]),
        (HEADER, ["implements no hook"]),
        (HEADER + "@hookimpl\ndef forge_reward(host): return []", ["hook `forge_reward`", "mean `forge_rewards`"]),
        (HEADER + "def forge_rewards(host): return []", ["`forge_rewards`", "put `@hookimpl`"]),
        (HEADER + "@hookimpl\ndef forge_rewards(host=None): return []", ["`host` a default"]),
        (HEADER + "@hookimpl\ndef forge_rewards(hosts): return []", ["no argument `hosts`", "mean `host`"]),
        (HEADER + "@hookimpl\ndef forge_rewards(**k): return []", ["`**k`", "`host`"]),
        (HEADER + "@hookimpl\ndef forge_rewards(host): pass", ["returned None", "ComponentSpec"]),
        (HEADER + "@hookimpl\ndef forge_rewards(host): return 'math'", ["returned 'math'"]),
        (HEADER + "@hookimpl\ndef forge_rewards(host): return [1]", ["returned 1 in its list"]),
        (HEADER + "@hookimpl\ndef forge_rewards(host):\n    yield 1/0", ["ZeroDivisionError", "fake_bad.py:7"]),
        (HEADER + "@hookimpl(wrapper=True)\ndef forge_rewards(host):\n    return (yield)", ["is a wrapper"]),
        (HEADER + "@hookimpl\nasync def forge_run_started(run): pass", ["is async"]),
        (HEADER + "@hookimpl\ndef forge_run_started(run): yield", ["is a generator"]),
        (
            HEADER + "S = ComponentSpec('x', 'a:b', 's')\n@hookimpl\ndef forge_rewards(host): return [S, S]",
            ["declares the reward `x` twice"],
        ),
        (
            HEADER + "@hookimpl\ndef forge_rewards(host): return [ComponentSpec('Bad Name', 'a:b', 's')]",
            ["ValueError", "'Bad Name'"],
        ),
        (reward_source("x") + "del FORGE_API", ["no API version", 'FORGE_API = "1.0"']),
        (reward_source("x") + "FORGE_API = 1.0", ["FORGE_API is 1.0"]),
    ],
)
def test_broken_plugins_say_why_in_one_sentence(install, source, words):
    install("bad", source)
    state, why = reason("bad")
    assert state == "failed"
    for word in words:
        assert word in why
    assert "\n" not in why


@pytest.mark.parametrize(
    ("api", "words"), [("1.9", "upgrade forge-host"), ("2.0", "upgrade forge-host"), ("0.9", "upgrade the plugin")]
)
def test_api_is_checked_before_the_hooks(install, api, words):
    # A hook this host does not know must not hide that the plugin is for another host.
    install("other", HEADER + f"FORGE_API = '{api}'\n@hookimpl\ndef forge_from_the_future(host): return []")
    state, why = reason("other")
    assert state == "incompatible"
    assert api in why and words in why


def test_entry_point_without_its_attribute(install):
    install("noattr", reward_source("x"), entry_points={"noattr": "fake_noattr:Missing"})
    assert "names `Missing`" in reason("noattr")[1]


def test_conflict_stops_a_run_and_not_browsing(install):
    install("twin", reward_source("a"))
    install("twin", reward_source("b"), dist="other-twin", module="other_twin")
    assert [r.state for r in only("twin").records if r.name == "twin"] == ["conflict", "conflict"]
    assert not {"fake_twin", "other_twin"} & sys.modules.keys()
    with pytest.raises(PluginError, match="forge-plugin-twin 1.0.* and other-twin 1.0"):
        only("twin", strict=True)


def test_unknown_plugin_has_near_matches(install):
    install("shortness", reward_source("shortness"))
    for strict in (True, False):
        with pytest.raises(PluginError, match="plugin `shortnes` is not installed; did you mean `shortness`"):
            only("shortnes", strict=strict)
    with pytest.raises(PluginError, match="--no-plugin: plugin `shortnes` is not installed"):
        only(block=["shortnes"])


def test_blocked_is_not_imported_and_wins_over_selected(install):
    install("blocked", "raise RuntimeError('imported')")
    host = only("blocked", block=["Blocked "], strict=True)
    assert record(host, "blocked").state == "blocked"
    with pytest.raises(PluginError, match="`blocked`.* is blocked by `--no-plugin`"):
        host.find("reward", "blocked/x")
    with pytest.raises(PluginError, match="blocked by"):
        host.ensure("blocked")


def test_a_broken_plugin_nobody_asked_for_stops_no_run(install):
    install("broken", "raise RuntimeError('boom')")
    install("fine", reward_source("fine"))
    host = PluginHost.load(strict=True)
    assert "boom" in record(host, "broken").reason
    assert "broken" in [r.name for r in host.problems]
    assert host.find("reward", "fine").plugin == "fine"
    with pytest.raises(PluginError, match=r"forge-plugin-broken 1\.0.*entry point `fake_broken`.*boom"):
        host.find("reward", "broken/x")


def test_autoload_can_be_turned_off(install, monkeypatch):
    install("quiet", reward_source("quiet"))
    monkeypatch.setenv("FORGE_HOST_PLUGIN_AUTOLOAD", "0")
    host = PluginHost.load()
    assert record(host, "quiet").state == "discovered"
    assert host.find("reward", "quiet").ref == "quiet/quiet"  # a reference still loads it


def test_references_load_one_more_plugin_by_its_name(install):
    install("late", reward_source("late"))
    install("early", reward_source("early"))
    host = only("early", strict=True)
    assert record(host, "late").state == "discovered"
    assert host.find("reward", "late").plugin == "late"
    assert record(host, "late").state == "loaded"
    assert only("early").find("reward", "late/late").plugin == "late"
    with pytest.raises(PluginError, match="no reward is named `late`; plugin `late`.* is not selected; add"):
        PluginHost.load(()).find("reward", "late")


def test_one_file_plugin(tmp_path):
    path = tmp_path / "my_plugin.py"
    path.write_text(reward_source("mine"))
    host = PluginHost.load((), files=[str(path)], strict=True)
    entry = host.find("reward", "mine")
    assert (entry.plugin, str(entry.origin)) == ("my-plugin", str(path))
    with pytest.raises(PluginError, match="does not exist; did you mean `my_plugin.py`"):
        PluginHost.load((), files=[str(tmp_path / "my_plugn.py")])


def test_one_file_plugin_cannot_take_a_name(install, tmp_path):
    install("taken", reward_source("x"))
    path = tmp_path / "taken.py"
    path.write_text(reward_source("x"))
    with pytest.raises(PluginError, match="`taken` is taken by forge-plugin-taken 1.0 and .*taken.py; rename the file"):
        PluginHost.load((), files=[str(path)])


def test_broken_one_file_plugin_stops_a_run(tmp_path):
    path = tmp_path / "oops.py"
    path.write_text("FORGE_API = '1.0'\nraise ValueError('no')")
    with pytest.raises(PluginError, match=r"plugin `oops` \(file .*oops.py\) cannot be loaded: .*ValueError: no"):
        PluginHost.load((), files=[str(path)], strict=True)
    assert not [name for name in sys.modules if name.startswith("forge_local_oops")]


def test_declarations_do_not_depend_on_order(install):
    for name in ("a1", "b2", "c3"):
        install(name, reward_source("same") + f"NAME = {name!r}")
    orders = [only(*names).entries("reward") for names in (("a1", "b2", "c3"), ("c3", "a1", "b2"))]
    assert orders[0] == orders[1]


def test_keyboard_interrupt_is_not_swallowed(install):
    install("ctrlc", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        only("ctrlc")


def test_deprecated_hooks_are_reported(install, monkeypatch):
    from forge_host import hookspecs
    from forge_host.plugins import loading

    class Specs(hookspecs.ForgeSpecs):
        forge_rewards = hookspecs.hookspec(
            since="1.0", deprecated=removed_in_2("hook `forge_rewards`", since="1.1", use="`forge_scores`")
        )(lambda self, host: None)

    monkeypatch.setattr(loading, "ForgeSpecs", Specs)
    install("old", reward_source("x"))
    with pytest.warns(ForgeRemovedIn2Warning) as caught:
        host = only("old", strict=True)
    words = "hook `forge_rewards` is deprecated since API 1.1 and goes away in 2.0; use `forge_scores`"
    assert host.deprecations_of("old") == (words,)
    assert {warning.filename for warning in caught if str(warning.message) == words} >= {
        str(install.root / "fake_old.py")
    }
