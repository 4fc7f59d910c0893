"""`forge-host new`: every kind's package works unedited, and nothing is overwritten."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner
from distributions import Site

from forge_host.cli.main import main
from forge_host.cli.new import MAX_NAME_LENGTH, usage, write_package
from forge_host.errors import UsageError
from forge_host.hookspecs import KIND_HOOKS
from forge_host.types import KINDS

TEXT = {".py", ".md", ".toml"}
LONG = "a-name-of-thirty-two-letters-abc"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """One package of every kind, written but not edited."""
    folder = tmp_path_factory.mktemp("new")
    return {kind: write_package(f"my-{kind}", kind, folder) for kind in KINDS}


@pytest.fixture(scope="module")
def site(tmp_path_factory, packages, wheels, others):
    """The host, the plugins of its quickstart and all those packages, installed as wheels."""
    site = Site(tmp_path_factory.mktemp("new-site") / "site", others)
    quickstart = (wheels[f"forge-plugin-{name}"] for name in ("grpo", "math", "vllm", "titan", "smollm2"))
    site.install(wheels["forge-host"], *quickstart, *packages.values())
    return site


#: Runs many commands of forge-host in one process, for each of which a start would cost more than it does.
COMMANDS = """
import contextlib, io, json, sys
from forge_host.cli.main import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words)
    print(json.dumps([words, code, out.getvalue()]))
"""


@pytest.mark.slow
def test_they_pass_their_own_tests(site, packages):
    done = site.python("-m", "pytest", "-rA", "--import-mode=importlib", "-m", "not slow", *packages.values())
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        assert re.search(rf"^PASSED .*tests/test_my_{kind}\.py::", done.stdout, re.MULTILINE), kind


def test_they_validate_show_their_settings_and_are_chosen_as_printed(site, packages):
    """The last is what `new` prints last, with `config show` in place of `run`."""
    calls = []
    for kind in KINDS:
        name = f"my-{kind}"
        words = shlex.split(usage(name, kind))
        assert words[:3] == ["forge-host", "run", "quickstart"]
        calls += [["plugins", "validate", name], ["components", "show", f"{name}/{name}"]]
        calls += [["config", "show", *words[2:]]]
    done = site.python("-c", COMMANDS, input=json.dumps(calls))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words for words, _, _ in answers] == calls
    for words, code, said in answers:
        assert code == 0, (words, said)
        assert "my-" in said, words


@pytest.mark.slow
def test_they_pass_strict_mypy(packages, tmp_path):
    """All in one run, by the settings that each has in its pyproject.toml."""
    said = [(folder / "pyproject.toml").read_text().split("[tool.mypy]")[1] for folder in packages.values()]
    heads, overrides = zip(*(text.split("[tool.ruff]")[0].partition("[[")[::2] for text in said), strict=True)
    (head,) = {text.strip() for text in heads}
    assert "strict = true" in head
    settings = tmp_path / "pyproject.toml"
    settings.write_text("\n".join(["[tool.mypy]", head, *{f"[[{text}" for text in overrides if text}]))
    done = run("mypy", "--cache-dir", str(tmp_path / "cache"), *map(str, packages.values()), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Success" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_passes_ruff_whatever_the_length_of_its_name(packages, kind, tmp_path):
    assert len(LONG) == MAX_NAME_LENGTH
    for folder in (packages[kind], write_package(LONG, kind, tmp_path), write_package("x", kind, tmp_path)):
        done = run("ruff", "check", "--no-cache", ".", cwd=folder)
        assert done.returncode == 0, done.stdout
        assert "$" not in "".join(path.read_text() for path in folder.rglob("*.*") if path.suffix in TEXT)


def test_prints_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "forge-plugin-terse", "--kind", "reward"]) == 0
    out = capsys.readouterr().out
    assert "cd forge-plugin-terse" in out and "forge-host plugins validate terse" in out
    assert "src/forge_plugin_terse/reward.py" in out and "rewards=terse" in out
    declared = (tmp_path / "forge-plugin-terse/src/forge_plugin_terse/__init__.py").read_text()
    assert f"def {KIND_HOOKS['reward']}(" in declared and '"forge_plugin_terse.reward:Terse"' in declared


def test_refuses_to_overwrite(tmp_path, capsys):
    folder = write_package("terse", "reward", tmp_path)
    (folder / "README.md").write_text("mine")
    assert main(["new", "terse", "--kind", "loss", "--output", str(tmp_path)]) == 2
    assert "exists and is left as it is" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == "mine"
    assert not (folder / "src/forge_plugin_terse/loss.py").exists()


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("My Reward!", "try `my-reward`"),
        ("9lives", "lower-case words"),
        ("x" * 33, "use at most 32"),
        ("../x", "try `x`"),
    ],
)
def test_refuses_a_bad_name(tmp_path, name, fix):
    with pytest.raises(UsageError, match=fix):
        write_package(name, "reward", tmp_path)
    assert not list(tmp_path.iterdir())


def test_refuses_an_unknown_kind():
    from forge_host.cli.new import new

    done = CliRunner().invoke(new, ["x", "--kind", "rewards"])
    assert done.exit_code == 2 and "'reward'" in done.output


def run(module, *arguments, cwd):
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=cwd, capture_output=True, text=True)


def test_refuses_the_name_of_an_installed_plugin(tmp_path):
    with pytest.raises(UsageError, match="a plugin `builtin` is installed here"):
        write_package("builtin", "reward", tmp_path)
