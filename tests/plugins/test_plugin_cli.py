"""`forge-host plugins | components | hooks`, as a user calls them: output, exit codes, what gets imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from forge_host.cli.main import main
from forge_host.hookspecs import HOOKS
from forge_host.testing.dists import HEADER, reward_source, write_dist


@pytest.fixture
def forge(capsys):
    """`forge("plugins list")` returns exit code, output and errors."""

    def call(line, *more):
        code = main([*line.split(), *more])
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return call


@pytest.fixture
def words(install):
    install("words", reward_source("shortness"), version="1.4")


def test_list(forge, words, install):
    install("twin", "")
    install("twin", "", dist="other-twin", module="other_twin")
    code, out, _ = forge("plugins list")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and rows[0] == ["name", "distribution", "version", "state"]
    assert ["words", "forge-plugin-words", "1.4", "discovered"] in rows
    assert ["twin", "other-twin", "1.0", "conflict"] in rows
    assert "twin: the name `twin` is claimed by forge-plugin-twin 1.0" in out
    assert "fake_words" not in sys.modules


def test_list_with_components_shows_the_broken_and_goes_on(forge, words, install):
    install("broken", "raise RuntimeError('boom')")
    code, out, _ = forge("plugins list --components")
    assert code == 0
    assert "reward:shortness" in out and "dataset:arithmetic" in out
    assert "broken: importing it raised RuntimeError: boom" in out


def test_show(forge, words):
    code, out, _ = forge("plugins show words")
    assert code == 0
    for text in ("forge-plugin-words", "1.4", "fake_words", "loaded", "forge_rewards", "words/shortness"):
        assert text in out
    (data,) = json.loads(forge("plugins show words --json")[1])
    assert (data["name"], data["state"], data["offers"][0]["name"]) == ("words", "loaded", "shortness")
    code, _, err = forge("plugins show wrods")
    assert (code, err) == (3, "error: plugin `wrods` is not installed; did you mean `words`?\n")


def test_doctor(forge, words, install):
    assert forge("plugins doctor words") == (0, "no problems found\n", "")
    install("broken", "import nowhere_at_all")
    code, out, _ = forge("plugins doctor words broken")
    assert code == 3
    assert out.startswith("error: plugin `broken` (forge-plugin-broken 1.0, entry point `fake_broken`) cannot be ")
    assert "\n    fix: pip " in out and out.endswith("1 errors, 0 warnings\n")
    (problem,) = json.loads(forge("plugins doctor broken --json")[1])
    assert (problem["plugin"], problem["check"], problem["level"]) == ("broken", "failed", "error")


def test_validate(forge, words, install):
    assert forge("plugins validate words") == (0, "plugin `words` is valid\n", "")
    install("bad", HEADER + "@hookimpl\ndef forge_rewards(host): return [ComponentSpec('x', 'fake_bad:X', 's')]")
    code, out, _ = forge("plugins validate bad")
    assert code == 3 and "reward `bad/x`: `fake_bad` has no `X`" in out


def test_lock(forge, words, tmp_path):
    path = str(tmp_path / "plugins.lock")
    code, out, _ = forge("plugins lock --plugins words")
    assert code == 0 and [p["name"] for p in json.loads(out)["plugins"]] == ["builtin", "words"]
    assert forge("plugins lock --plugins words -o", path) == (0, f"wrote {path}: 2 plugins\n", "")
    assert forge("plugins lock --plugins words --check", path) == (0, f"everything is as {path} says\n", "")
    assert forge("plugins doctor words --locked", path)[0] == 0
    code, _, err = forge("plugins lock --plugins= --check", path)
    assert code == 3 and "plugin `words` (forge-plugin-words 1.4) of the lock is not loaded" in err
    assert forge("plugins lock --check", str(tmp_path / "no.lock"))[0] == 2


def test_components(forge, words, install):
    install("other", reward_source("shortness"))
    install("broken", "raise RuntimeError('boom')")
    code, out, err = forge("components list reward")
    names = [line.split()[0] for line in out.splitlines()[2:]]
    assert code == 0 and {"words/shortness", "other/shortness"} <= set(names)
    assert "plugin `broken` is left out: importing it raised RuntimeError: boom" in err
    listed = json.loads(forge("components list --json")[1])
    assert {"reward", "dataset"} <= {entry["kind"] for entry in listed}
    code, _, err = forge("components list rewrad")
    assert code == 3 and "did you mean `reward`" in err


def test_components_show(forge, words, install):
    code, out, _ = forge("components show words/shortness")
    assert code == 0
    assert out.startswith("reward words/shortness: length of the response\n")
    assert f"{install.root}/fake_words.py:7" in out
    head, row = (line.split("  ") for line in out.splitlines() if line.startswith(("setting", "scale")))
    assert [cell.strip() for cell in row if cell] == ["scale", "float", "1.0", "multiplies the score"]
    (data,) = json.loads(forge("components show shortness --json")[1])
    assert data["settings"][0]["help"] == "multiplies the score"
    code, _, err = forge("components show shortnes")
    assert code == 3 and "no component is named `shortnes`; did you mean `shortness`" in err


def test_components_show_with_its_kind(forge, words):
    assert forge("components show reward shortness")[1] == forge("components show shortness --kind reward")[1]
    code, _, err = forge("components show shortness words")
    assert code == 2 and "`shortness words` is not [KIND] REF" in err


def test_components_show_what_cannot_be_imported(forge, install):
    spec = "ComponentSpec('x', 'gone:X', 's', requires=['gone'])"
    install("lacks", HEADER + f"@hookimpl\ndef forge_rewards(host): return [{spec}]")
    code, out, _ = forge("components show lacks/x")
    assert code == 0 and "gone (not installed)" in out
    assert "its settings cannot be shown here: reward `lacks/x` (forge-plugin-lacks 1.0): it needs `gone`" in out


def test_components_show_a_class_in_a_file(forge, tmp_path):
    path = tmp_path / "losses.py"
    path.write_text("class Loss:\n    def __init__(self, beta: float = 0.1, *, layers): ...\n")
    code, out, _ = forge("components show", f"{path}:Loss")
    assert code == 0 and f"{path}:1" in out
    rows = [line.split() for line in out.splitlines()[-2:]]
    assert rows == [["beta", "float", "0.1"], ["layers", "anything", "required"]]


def test_hooks(forge, words):
    code, out, _ = forge("hooks list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[2:]] == list(HOOKS)
    assert [hook["name"] for hook in json.loads(forge("hooks list --json")[1])] == list(HOOKS)
    code, out, _ = forge("hooks show forge_rewards")
    assert out.startswith("forge_rewards(host: HostInfo) -> Iterable[ComponentSpec]\n")
    assert "words" in out.splitlines()[-1]
    code, _, err = forge("hooks show forge_reward")
    assert code == 3 and "did you mean `forge_rewards`" in err


def test_list_of_thirty_plugins_imports_none_of_them(tmp_path):
    for number in range(30):
        name = f"many-{number}"
        module = f"many_{number}"
        source = f"import pathlib\npathlib.Path({str(tmp_path)!r}, 'imported').touch()\nraise RuntimeError"
        write_dist(tmp_path, f"forge-plugin-{name}", {name: module}, {module: source})
    code = (
        "import sys; from forge_host.cli.main import main; rc = main(['plugins', 'list', '--json'])\n"
        "heavy = [m for m in 'torch monarch vllm transformers pluggy yaml rich'.split() if m in sys.modules]\n"
        "print(rc, heavy, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stderr == "0 []\n"
    listed = [record["name"] for record in json.loads(done.stdout)]
    assert len([name for name in listed if name.startswith("many-")]) == 30
    assert not (tmp_path / "imported").exists()


def test_lock_to_a_file_answers_in_json_when_asked(tmp_path, capsys):
    file = tmp_path / "plugins.lock"
    assert main(["plugins", "lock", "--plugins", "", "--output", str(file), "--json"]) == 0
    said, number = json.loads(capsys.readouterr().out), len(json.loads(file.read_text())["plugins"])
    assert said == {"wrote": str(file), "plugins": number}
