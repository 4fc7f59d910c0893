"""The loader's tests once more, under the oldest pluggy that is supported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pluggy
import pytest

FILES = ("test_plugin_loading.py", "test_plugin_hooks.py", "test_plugin_references.py")


@pytest.mark.slow
def test_loader_under_pluggy_1_6(tmp_path):
    if pluggy.__version__.startswith("1.6."):
        pytest.skip("this is the run under pluggy 1.6")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "old")]
    fetched = subprocess.run([*pip, "pluggy==1.6.0"], capture_output=True, text=True, timeout=120)
    if fetched.returncode:
        pytest.skip(f"pip cannot fetch pluggy 1.6.0: {fetched.stderr.strip().splitlines()[-1:]}")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "old"), os.environ.get("PYTHONPATH", "")])}
    seen = subprocess.run(
        [sys.executable, "-c", "import pluggy; print(pluggy.__version__)"], env=env, capture_output=True, text=True
    )
    assert seen.stdout.strip() == "1.6.0"
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(here / name) for name in FILES)],
        env=env, cwd=here.parents[1], capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout and "skipped" not in done.stdout
