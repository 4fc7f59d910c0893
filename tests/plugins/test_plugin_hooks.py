"""Hook specifications, their typed façade, call order, and what an observer's error says."""

from __future__ import annotations

import inspect

import pluggy
import pytest

from forge_host.api import KINDS, Finding, ForgePlugin, RunError, RunInfo, StepReport, hookimpl
from forge_host.errors import PluginError
from forge_host.hookspecs import DECLARATION_HOOKS, HOOKS, KIND_HOOKS, OBSERVER_HOOKS, ForgeSpecs
from forge_host.plugins import PluginHost
from forge_host.plugins.hooks import Hooks
from forge_host.testing.dists import HEADER

RUN = RunInfo(id="r", directory="/d", config={})


def hooks_of(cls):
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if name.startswith("forge_")}


def test_specs_base_class_facade_and_lists_agree():
    assert hooks_of(ForgeSpecs) == hooks_of(ForgePlugin) == hooks_of(Hooks) == set(HOOKS)
    assert set(HOOKS) == set(DECLARATION_HOOKS) | set(OBSERVER_HOOKS)
    assert set(KIND_HOOKS) == set(KINDS)


def test_facade_and_specs_have_the_same_arguments():
    for hook in HOOKS:
        assert list(inspect.signature(getattr(Hooks, hook)).parameters) == list(
            inspect.signature(getattr(ForgeSpecs, hook)).parameters
        ), hook


def test_every_hook_is_documented_and_says_since_when():
    for hook in HOOKS:
        spec = getattr(ForgeSpecs, hook)
        assert spec.__doc__ and spec.forge_since == "1.0" and spec.forge_deprecated == ""


def test_pluggy_knows_exactly_these_hooks():
    manager = pluggy.PluginManager("forge_host")
    manager.add_hookspecs(ForgeSpecs)
    assert {name for name in vars(manager.hook) if not name.startswith("_")} == set(HOOKS)


class Recorder(ForgePlugin):
    FORGE_API = "1.0"

    def __init__(self, name, log):
        self.name, self.log = name, log

    @hookimpl
    def forge_run_started(self, run):
        self.log.append(self.name)


class First(Recorder):
    @hookimpl(tryfirst=True)
    def forge_run_started(self, run):
        self.log.append(self.name)


class Wrapper(Recorder):
    @hookimpl(wrapper=True)
    def forge_run_started(self, run):
        self.log.append(f"{self.name} in")
        result = yield
        self.log.append(f"{self.name} out")
        return result


def test_order_does_not_depend_on_registration():
    logs = []
    for names in (("a", "b", "c"), ("c", "b", "a")):
        log = []
        kinds = {"a": Wrapper, "b": Recorder, "c": Recorder}
        plugins = {name: kinds[name](name, log) for name in names} | {"a-first": First("a-first", log)}
        hooks = Hooks(plugins)
        hooks.forge_run_started(RUN)
        assert hooks.order("forge_run_started") == ["a", "a-first", "c", "b"]
        logs.append(log)
    assert logs == [["a in", "a-first", "c", "b", "a out"]] * 2


class Broken(ForgePlugin):
    @hookimpl
    def forge_step_finished(self, report):
        raise ZeroDivisionError("by zero")

    @hookimpl
    def forge_run_failed(self):
        raise RunError("the budget is spent", fix="raise it")

    @hookimpl
    def forge_check_plan(self, plan):
        yield Finding("warning", "first")
        raise KeyError(plan)


def test_an_observer_that_raises_is_named():
    hooks = Hooks({"fine": Wrapper("fine", []), "broken": Broken()})
    report = StepReport(step=1, policy_version=1, time=0.0, metrics={})
    with pytest.raises(PluginError) as error:
        hooks.forge_step_finished(RUN, report)
    text = str(error.value)
    assert text.startswith("plugin `broken`: hook `forge_step_finished` raised ZeroDivisionError: by zero (")
    assert "test_plugin_hooks.py:" in text
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(PluginError, match="plugin `broken`: hook `forge_check_plan` raised KeyError: 'the plan'"):
        hooks.forge_check_plan("the plan", PluginHost.load(()).info)


def test_an_observer_may_stop_the_run_on_purpose():
    with pytest.raises(RunError, match="^plugin `broken`: the budget is spent; raise it$"):
        Hooks({"broken": Broken()}).forge_run_failed(RUN, ValueError())


def test_two_plugins_of_one_class_are_both_suspects():
    with pytest.raises(RunError, match="^one of the plugins `a`, `b`: the budget"):
        Hooks({"a": Broken(), "b": Broken()}).forge_run_failed(RUN, ValueError())


def test_findings_are_collected_and_checked(install):
    for name, body in {
        "nothing": "return None",
        "warns": "return [Finding('warning', 'w')]",
        "stops": "yield Finding('error', plan)",
    }.items():
        install(name, HEADER + f"@hookimpl\ndef forge_check_plan(plan, host):\n    {body}")
    host = PluginHost.load(["nothing", "warns", "stops"], strict=True)
    found = host.hooks.forge_check_plan("no", host.info)
    assert found == [Finding("warning", "w"), Finding("error", "no")]
    install("text", HEADER + "@hookimpl\ndef forge_check_plan(plan): return ['oops']")
    host = PluginHost.load(["text"], strict=True)
    with pytest.raises(PluginError, match="plugins `text`: hook `forge_check_plan` returned 'oops' in its list"):
        host.hooks.forge_check_plan("no", host.info)


def test_hooks_are_timed_also_across_plugins_loaded_later(install):
    for name in ("one", "two"):
        install(name, HEADER + "import time\n@hookimpl\ndef forge_run_started(run): time.sleep(0.01)")
    host = PluginHost.load(["one"], strict=True)
    host.hooks.forge_run_started(RUN)
    host.ensure("two")
    host.hooks.forge_run_started(RUN)
    timing = host.hooks.timings["forge_run_started"]
    assert timing.calls == 2 and 0.03 <= timing.seconds < 1


def test_the_facade_collects_declarations(install):
    host = PluginHost.load((), strict=True)
    names = {spec.name for spec in host.hooks.forge_datasets(host.info)}
    assert names == {entry.spec.name for entry in host.entries("dataset")}
