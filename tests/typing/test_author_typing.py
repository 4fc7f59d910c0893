"""What mypy says to plugin authors: nothing about a right plugin, the line and the mistake about a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Strict settings that leave torch out, which takes a minute; packages of `forge-host new` are checked with it."""
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\n")
    return folder


def check(path, folder):
    """(line, error code) of every complaint of strict mypy about one file, without this repository's settings."""
    arguments = ["--config-file", folder / "mypy.ini", "--cache-dir", folder / "cache", "--no-error-summary", path]
    out, err, _ = api.run([str(argument) for argument in arguments])
    assert not err, err
    found = re.findall(r"^(\S+\.py):(\d+): error: .*\[([\w-]+)\]$", out, re.MULTILINE)
    assert len(found) == out.count(": error: "), out
    assert all(Path(file).name == path.name for file, _, _ in found), f"complaints about the host itself:\n{out}"
    return {(int(line), code) for _, line, code in found}


def test_right_plugin_passes_strict(folder):
    assert check(CASES / "good_plugin.py", folder) == set()


def test_wrong_plugin_is_told_every_mistake(folder):
    path = CASES / "wrong_plugin.py"
    expected = {
        (number, match[1])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := re.search(r"# expect: ([\w-]+)$", line))
    }
    assert len(expected) == 8
    assert check(path, folder) == expected
