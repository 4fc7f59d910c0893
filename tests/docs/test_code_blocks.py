"""Every code block of README and the pages runs, page by page and in order, in a folder of its own.

`title="FILE"` saves a block under that name; YAML must resolve on top of the quickstart, a `test_*.py` must pass.
Commands of forge-host that would train are made dry runs. What cannot run here says which test covers it, in a comment
`<!-- covered by FILE::TEST -->` above it.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doc_pages import FILES, REPO, Block, blocks
from made_runs import CONFIG, episode, healthy

from forge_host.cli.main import main

#: Output, file trees and the like.
NOT_CODE = ("text",)
TRAINING = ("run", "sft")
RUNS = ("quickstart-20261201-120000", "quickstart-20261201-130000")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with two finished runs, which the pages name."""
    for name in RUNS:
        run = tmp_path / "runs" / name
        (run / "rollouts").mkdir(parents=True)
        (run / "config.resolved.yaml").write_text(CONFIG)
        rows = [{"step": s, "policy_version": s, "time": 1e9 + s, "metrics": healthy(s, 20)} for s in range(1, 21)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = [json.dumps(episode(s, n)) + "\n" for s in range(1, 21) for n in range(8)]
        (run / "rollouts" / "rollouts.jsonl").write_text("".join(lines))
        (run / "summary.json").write_text(json.dumps({"run": name, "status": "done", "error": None, "steps": 20}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page_file", FILES, ids=lambda file: str(file.relative_to(REPO)))
def test_blocks_run(page_file: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page_file):
        assert block.language, f"{block} has no language"
        if block.covered:
            _check_cover(block)
        elif block.language in ("bash", "sh"):
            for command in _commands(block.text):
                _run_command(block, command, capfd)
        elif block.language == "python":
            _run_python(block, folder)
        elif block.language in ("yaml", "json", "toml"):
            _run_data(block, folder, capfd)
        else:
            assert block.language in NOT_CODE, f"{block}: nothing runs {block.language}"


def _check_cover(block: Block) -> None:
    file, name = block.covered or ("", "")
    text = (REPO / file).read_text() if (REPO / file).is_file() else ""
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{block}: {file} has no test {name}"


def _commands(text: str) -> list[list[str]]:
    joined = text.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def _run_command(block: Block, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert words[0] == "forge-host", f"{block}: {words[0]} is not run here; say what covers it"
    arguments = words[1:]
    if arguments[0] in TRAINING and "--dry-run" not in arguments:
        arguments = [*arguments, "--dry-run"]
    capfd.readouterr()
    code = main(arguments)
    assert code == 0, f"{block}: {shlex.join(words)} ended with {code}: {capfd.readouterr().err}"


def _run_python(block: Block, folder: Path) -> None:
    name = block.title or "block.py"
    (folder / name).write_text(block.text)
    command = [name]
    if name.startswith("test_"):
        command = ["-m", "pytest", "-q", "-c", str(REPO / "pyproject.toml"), "--rootdir", ".", name]
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, f"{block}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def _run_data(block: Block, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if block.title:
        (folder / block.title).write_text(block.text)
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    else:
        (folder / "block.yaml").write_text(block.text)
        capfd.readouterr()
        code = main(["config", "show", "quickstart", "--config", "block.yaml"])
        said = capfd.readouterr().err
        assert code == 0 and "would not run" not in said, f"{block}: {said}"


def test_a_block_that_does_not_run_is_found(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The runner itself: a wrong key, a failing assertion, an unknown command and a missing test are all seen."""
    page = REPO / "made.md"

    def block(language: str, text: str, covered: tuple[str, str] | None = None) -> Block:
        return Block(page, 1, language, "", text, covered)

    with pytest.raises(AssertionError, match="batchsize"):
        _run_data(block("yaml", "training: {batchsize: 3}\n"), folder, capfd)
    with pytest.raises(AssertionError, match="1 == 2"):
        _run_python(block("python", "assert 1 == 2, '1 == 2'\n"), folder)
    with pytest.raises(AssertionError, match="ended with 2"):
        _run_command(block("bash", ""), ["forge-host", "rnu"], capfd)
    with pytest.raises(AssertionError, match="has no test"):
        _check_cover(block("bash", "", ("tests/docs/test_code_blocks.py", "test_that_is_not_there")))
