"""`doctor` and `validate`: each kind of problem is found, named, and comes with a fix; sound plugins have none."""

from __future__ import annotations

import sys

import attrs
import pytest

from forge_host.errors import PluginError
from forge_host.plugins import PluginHost, doctor
from forge_host.plugins.doctor import diagnose
from forge_host.plugins.validate import validate
from forge_host.testing.dists import HEADER, reward_source, write_dist


def checks(problems):
    return [(problem.check, problem.level) for problem in problems]


def declare(*specs):
    return HEADER + f"@hookimpl\ndef forge_rewards(host):\n    return [{', '.join(specs)}]\n"


def test_a_sound_plugin_has_no_problems(install):
    install("sound", reward_source("sound"))
    assert diagnose(["sound"]) == []
    assert validate("sound") == []


def test_broken_incompatible_and_conflicting(install):
    install("broken", "raise RuntimeError('boom')")
    install("newer", "FORGE_API = '1.9'")
    install("twin", reward_source("a"))
    install("twin", reward_source("b"), dist="other-twin", module="other_twin")
    problems = diagnose(["broken", "newer", "twin"])
    assert [(p.plugin, *c) for p, c in zip(problems, checks(problems), strict=True)] == [
        ("broken", "failed", "error"), ("newer", "incompatible", "error"),
        ("twin", "conflict", "error"), ("twin", "conflict", "error"),
    ]  # fmt: skip
    assert "boom" in problems[0].message and "pip uninstall forge-plugin-broken" in problems[0].fix
    assert problems[1].fix == "pip install --upgrade forge-host"
    fixes = [problem.fix.partition("   ")[0] for problem in problems[2:]]
    assert fixes == ["pip uninstall forge-plugin-twin", "pip uninstall other-twin"]


def test_missing_requirements_and_targets(install):
    specs = (
        "ComponentSpec('x', 'fake_lacks:X', 's', requires=('json', 'not_there'))",
        "ComponentSpec('y', 'fake_lacks.deeper:X', 's')",
    )
    install("lacks", declare(*specs))
    requires, target = diagnose(["lacks"])
    assert (requires.check, requires.fix.split("   ")[0]) == ("requires", "pip install not_there")
    assert "reward `lacks/x` needs `not_there`" in requires.message
    assert (target.check, target.level) == ("target", "error")
    assert "there is no module `fake_lacks.deeper`" in target.message


def test_heavy_and_slow_declaration_modules(install, monkeypatch):
    monkeypatch.setattr(doctor, "SLOW_SECONDS", 0.2)
    write_dist(install.root, "torchlike", {}, {"ray": ""})
    install("heavy", "import ray, time\ntime.sleep(0.3)\n" + reward_source("x"))
    heavy, slow = diagnose(["heavy"])
    assert (heavy.check, heavy.level) == ("heavy", "warning") and "imports `ray`" in heavy.message
    assert (slow.check, slow.level) == ("slow", "warning") and "importtime" in slow.fix


def test_a_plugin_that_hangs_or_ends_the_interpreter_hurts_nothing(install, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_SECONDS", 2.0)
    install("hangs", "import time\ntime.sleep(60)")
    (problem,) = diagnose(["hangs"])
    assert (problem.check, problem.level) == ("slow", "error") and "more than 2 s" in problem.message
    assert "fake_hangs" not in sys.modules


def test_a_distribution_installed_twice(install, tmp_path, monkeypatch):
    install("double", reward_source("x"))
    write_dist(tmp_path / "second", "forge-plugin-double", {"double": "fake_double"}, {}, version="0.9")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "second")])
    (problem,) = diagnose(["double"])
    assert (problem.check, problem.level) == ("shadowed", "warning")
    assert "1.0 in " in problem.message and "0.9 in " in problem.message


def test_ambiguous_names_are_a_warning(install):
    for name in ("left", "right"):
        install(name, reward_source("same-name"))
    ambiguous = [p for p in diagnose() if p.check == "ambiguous" and "same-name" in p.message]
    assert [(p.level, p.fix) for p in ambiguous] == [("warning", "write `left/same-name` or `right/same-name`")]


def test_autoload_off_does_not_hide_problems(install, monkeypatch):
    monkeypatch.setenv("FORGE_HOST_PLUGIN_AUTOLOAD", "0")
    install("broken", "raise RuntimeError('boom')")
    assert ("broken", "failed") in [(p.plugin, p.check) for p in diagnose()]


def test_lock_drift(install):
    install("locked", reward_source("x"), version="1.0")
    lock = PluginHost.load(["locked"], strict=True).lock()
    assert diagnose(["locked"], lock=lock) == []
    plugins = tuple(attrs.evolve(p, version="0.5") if p.name == "locked" else p for p in lock.plugins)
    (problem,) = diagnose(["locked"], lock=attrs.evolve(lock, plugins=plugins))
    assert (problem.check, problem.level) == ("drift", "error")
    assert problem.message == "plugin `locked` is forge-plugin-locked 1.0, the lock has forge-plugin-locked 0.5"
    assert "forge-plugin-locked==0.5" in problem.fix


def test_unknown_plugin():
    for check in (validate, lambda name: diagnose([name])):
        with pytest.raises(PluginError, match="^plugin `bulitin` is not installed; did you mean `builtin`"):
            check("bulitin")


BAD = """
import attrs
from forge_host.api import AlgorithmParts, Use, field

@attrs.frozen
class NoHelp:
    scale: float = 1.0
    def __call__(self, response): return 1.0

@attrs.frozen
class BadDefault:
    count: int = field(default="three", help="count")
    def __call__(self, response): return 1.0

@attrs.frozen
class NotPlain:
    thing: object = field(factory=object, help="thing")
    def __call__(self, response): return 1.0

class Asks:
    def __call__(self, respones): return 1.0

class Uncallable: ...

@attrs.frozen
class Algorithm:
    size: int = field(default=1, help="size")
    def build(self): return "parts"

@attrs.frozen
class Good:
    size: int = field(help="size")
    use: Use | None = field(default=None, help="another")
    def __call__(self, response): return 1.0

def command(): ...
"""


def test_validate_finds_what_only_importing_shows(install):
    names = {
        "no-help": "NoHelp", "bad-default": "BadDefault", "not-plain": "NotPlain", "asks": "Asks",
        "uncallable": "Uncallable", "gone": "Missing", "good": "Good",
    }  # fmt: skip
    specs = [f"ComponentSpec({name!r}, 'fake_bad.parts:{target}', 's')" for name, target in names.items()]
    source = declare(*specs) + (
        "@hookimpl\ndef forge_algorithms(host): return [ComponentSpec('algo', 'fake_bad.parts:Algorithm', 's')]\n"
        "@hookimpl\ndef forge_commands(host): return [CommandSpec('cmd', 'fake_bad.parts:command', 's')]\n"
    )
    install("bad", source, modules={"fake_bad.parts": BAD})
    problems = {(p.check, p.message.partition(":")[0]): p for p in validate("bad")}
    assert {key: p.level for key, p in problems.items()} == {
        ("arguments", "reward `bad/asks`"): "error",
        ("arguments", "reward `bad/uncallable`"): "error",
        ("build", "algorithm `bad/algo`"): "error",
        ("command", "command `cmd`"): "error",
        ("help", "reward `bad/no-help`"): "error",
        ("round-trip", "reward `bad/bad-default`"): "error",
        ("round-trip", "reward `bad/not-plain`"): "error",
        ("target", "reward `bad/gone`"): "error",
    }
    assert "`respones`" in problems["arguments", "reward `bad/asks`"].message
    assert "did you mean `response`" in problems["arguments", "reward `bad/asks`"].fix


def test_validate_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(reward_source("mine"))
    assert validate(str(path)) == []
    path.write_text(reward_source("mine").replace('field(default=1.0, help="multiplies the score")', "1.0"))
    assert checks(validate(str(path))) == [("help", "error")]


def test_builtin_is_valid():
    assert validate("builtin") == []
