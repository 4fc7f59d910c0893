"""mypy sees a wrong hook of a plugin that subclasses `ForgePlugin`, and accepts a right one."""

from __future__ import annotations

import subprocess
import sys

import pytest

GOOD = '''
from collections.abc import Iterable
from forge_host.api import ComponentSpec, ForgePlugin, HostInfo, RunInfo, StepReport, hookimpl

class Good(ForgePlugin):
    FORGE_API = "1.0"

    @hookimpl
    def forge_rewards(self, host: HostInfo) -> Iterable[ComponentSpec]:
        return [ComponentSpec("x", "a.b:C", "s")]

    @hookimpl
    def forge_step_finished(self, run: RunInfo, report: StepReport) -> None:
        print(report.step)
'''
CHANGES = {
    "-> Iterable[ComponentSpec]": "-> list[str]",
    '[ComponentSpec("x", "a.b:C", "s")]': '["x"]',
    "report: StepReport": "report: int",
    "report.step": "report",
}


@pytest.mark.slow
def test_mypy_checks_the_hooks_of_the_typed_base_class(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    wrong = GOOD
    for right, mistake in CHANGES.items():
        wrong = wrong.replace(right, mistake)
    (tmp_path / "wrong.py").write_text(wrong)
    # What mypy finds in forge_host itself is another test's matter.
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "good.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    first, second = (line for line in done.stdout.splitlines() if ": error: " in line)
    assert first.startswith("wrong.py:9: ") and "ComponentSpec" in first and "[override]" in first
    assert second.startswith("wrong.py:13: ") and "StepReport" in second and "[override]" in second
