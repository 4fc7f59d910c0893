"""What mypy says to plugin authors: nothing about a right plugin, the line and the mistake about a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy-cache")


def check(path, cache):
    """(line, error code) of every complaint of `mypy --strict` about one file, without this repository's settings."""
    out, err, _ = api.run(["--strict", "--config-file=", "--cache-dir", str(cache), "--no-error-summary", str(path)])
    assert not err, err
    found = re.findall(r"^(\S+\.py):(\d+): error: .*\[([\w-]+)\]$", out, re.MULTILINE)
    assert len(found) == out.count(": error: "), out
    assert all(Path(file).name == path.name for file, _, _ in found), f"complaints about the host itself:\n{out}"
    return {(int(line), code) for _, line, code in found}


@pytest.mark.slow
def test_right_plugin_passes_strict(cache):
    assert check(CASES / "good_plugin.py", cache) == set()


def test_wrong_plugin_is_told_every_mistake(cache):
    path = CASES / "wrong_plugin.py"
    expected = {
        (number, match[1])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := re.search(r"# expect: ([\w-]+)$", line))
    }
    assert len(expected) == 8
    assert check(path, cache) == expected
