"""`code`: 1 if the program in the reply passes the prompt's tests, run in a sandbox.

    tests = {"inputs": ["1"], "outputs": ["2"]}
    CodeReward()(response="```python\\nprint(int(input()) + 1)\\n```", metadata=tests).value       # 1.0

A program that fails, crashes, hangs or breaks a limit is 0. A sandbox that does not work, or tests that cannot be read,
raise: that is no verdict. The first call starts the sandboxes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt, in_

from forge_host.api import RewardResult, field
from forge_plugin_code.cases import StdioCases, read_cases
from forge_plugin_code.compare import COMPARISONS
from forge_plugin_code.extract import WHERE, find_code
from forge_plugin_code.isolation import MODES, Settings
from forge_plugin_code.pool import pool_for
from forge_plugin_code.verdict import run_asserts, run_stdio


@attrs.frozen(kw_only=True)
class CodeReward:
    """Grades Python by its tests; `None` when the prompt has none."""

    code_from: str = field(
        default="fence",
        help="where the program is: fence (last ```python block), whole (the reply), either",
        validator=in_(WHERE),
    )
    partial_credit: bool = field(default=False, help="the share of passed tests instead of all or nothing")
    compare: str = field(
        default="lines",
        help="how output is compared: lines (blanks at ends ignored), tokens (words, numbers within tolerance), exact",
        validator=in_(COMPARISONS),
    )
    tolerance: float = field(default=1e-6, help="for numbers when comparing tokens", validator=ge(0.0))
    timeout_s: float = field(
        default=3.0, help="wall-clock and CPU time of one run of the program", unit="s", validator=gt(0)
    )
    total_s: float = field(default=6.0, help="wall-clock time of all tests of one reply", unit="s", validator=gt(0))
    wait_s: float = field(
        default=2.0, help="wait for a free sandbox; longer is an error, not a grade", unit="s", validator=gt(0)
    )
    memory_mb: int = field(default=512, help="address space of the program", unit="MiB", validator=ge(64))
    output_kb: int = field(default=1024, help="what the program may print", unit="KiB", validator=ge(1))
    packages: tuple[str, ...] = field(
        default=(),
        help="folders the program may also import from, read-only (say a site-packages with numpy)",
        converter=tuple,
    )
    workers: int = field(default=0, help="replies graded at the same time; 0 is two a CPU", validator=ge(0))
    isolation: str = field(
        default="auto",
        help="bwrap, namespaces, none (with allow_unsafe), or auto: the first that works",
        validator=in_(("auto", *MODES)),
    )
    allow_unsafe: bool = field(
        default=False, help="run the program even where it cannot be isolated: it can read and change your files"
    )

    def __call__(
        self, response: str, target: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> RewardResult | None:
        """Value 1 or 0 (or the share); parts "passed" (share of tests) and "has_code".

        Raises:
            CasesError: the prompt's tests cannot be read or do not work by themselves.
            SandboxError: a sandbox did not work, or none was free in `wait_s`.
            PluginError: code cannot be isolated on this machine.
        """
        cases = read_cases(metadata, target)
        if cases is None:
            return None
        code = find_code(response, self.code_from)
        if code is None:
            return RewardResult(0.0, {"passed": 0.0, "has_code": 0.0}, "no code in the reply")
        pool = pool_for(self.settings, self.workers or 2 * (os.cpu_count() or 1))
        with pool.slot(self.wait_s):
            if isinstance(cases, StdioCases):
                result = run_stdio(pool, code, cases, self)
            else:
                result = run_asserts(pool, code, cases, self)
        passed, total, note = result
        share = passed / total
        value = share if self.partial_credit else float(passed == total)
        return RewardResult(value, {"passed": share, "has_code": 1.0}, note)

    @property
    def settings(self) -> Settings:
        return Settings(isolation=self.isolation, allow_unsafe=self.allow_unsafe, packages=self.packages)

    @property
    def limits(self) -> dict[str, Any]:
        """What one process of the program may use."""
        return {
            "timeout_s": min(self.timeout_s, self.total_s),
            "memory_bytes": self.memory_mb * 1024**2,
            "output_bytes": self.output_kb * 1024,
            "file_bytes": 16 * 1024**2,
        }
