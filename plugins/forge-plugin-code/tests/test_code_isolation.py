"""Refusal, the plan check, the pool of sandboxes, and the reward in its service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forge_plugin_code import isolation as isolation_module
from forge_plugin_code.cases import AssertCases, StdioCases, read_cases
from forge_plugin_code.isolation import Settings, choose
from forge_plugin_code.plan import findings
from forge_plugin_code.pool import Pool, SandboxError, pool_for
from forge_plugin_code.reward import CodeReward
from forge_plugin_code.verdict import run_asserts, run_stdio

from forge_host.api import Completion, PluginError, Prompt, Use
from forge_host.loop.scoring import Scorer

ADD = "def add(a, b):\n    return a + b"
ADD_TESTS = json.dumps({"tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]})


@pytest.fixture
def works() -> None:
    """Skips where this machine has no isolation, with its reason."""
    try:
        choose(Settings())
    except PluginError as error:
        pytest.skip(str(error))


# --- isolation, pool, plan ------------------------------------------------------------------------------------------


@pytest.fixture
def no_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where sandboxes do not start."""
    command = [sys.executable, "-c", "import sys; sys.exit('cannot isolate: unshare: Operation not permitted')"]
    start = isolation_module.start_command
    monkeypatch.setattr(
        "forge_plugin_code.pool.start_command", lambda mode, s: start(mode, s) if mode == "none" else command
    )
    isolation_module._choose.cache_clear()
    yield
    isolation_module._choose.cache_clear()


@pytest.mark.usefixtures("no_isolation")
def test_refuses_without_isolation() -> None:
    with pytest.raises(PluginError, match="not permitted.*apt-get install bubblewrap.*allow_unsafe"):
        CodeReward(workers=3)(response="```\nprint(1)\n```", metadata={"inputs": ["1"], "outputs": ["1"]})
    with pytest.raises(PluginError, match="none was asked for"):
        choose(Settings(isolation="none"))


@pytest.mark.usefixtures("no_isolation")
def test_runs_without_isolation_when_allowed() -> None:
    """The limits that need no namespaces still hold."""
    reward = CodeReward(workers=1, allow_unsafe=True, timeout_s=5.0)
    metadata = {"inputs": ["1"], "outputs": ["1"]}
    assert reward(response="```\nprint(input())\n```", metadata=metadata).value == 1.0
    assert reward(response="```\nwhile True: print(1)\n```", metadata=metadata).value == 0.0
    assert reward(response="```\nbytearray(10 << 30); print(1)\n```", metadata=metadata).value == 0.0
    assert reward(response=f"```\n{ADD}\n```", target=ADD_TESTS).value == 1.0


@pytest.mark.usefixtures("no_isolation")
def test_plan_check_says_so_before_the_run() -> None:
    def plan(timeout_s: float = 10.0, **config: Any) -> Any:
        part = SimpleNamespace(plugin="code", name="code", use=Use("code", config))
        return SimpleNamespace(
            rewards=((part, 1.0),), config=SimpleNamespace(reward=SimpleNamespace(timeout_s=timeout_s))
        )

    (finding,) = findings(plan())
    assert finding.level == "error" and "bubblewrap" in finding.fix
    (finding,) = findings(plan(allow_unsafe=True))
    assert finding.level == "warning"
    warning, late = findings(plan(allow_unsafe=True, timeout_s=10.0, total_s=20.0))
    assert late.level == "error" and "23" in late.fix
    assert findings(SimpleNamespace(rewards=())) == []  # type: ignore[arg-type]


async def test_in_the_reward_service_a_hang_is_0_and_a_broken_test_an_error(isolation: str) -> None:
    """With default deadlines, several replies at once."""
    reward = CodeReward(isolation=isolation, workers=4, wait_s=5.0)
    scorer = Scorer(rewards=[("code", reward, 1.0)], timeout_s=15.0)
    programs = ["print(input())", "while True: pass", "import time; time.sleep(99)", "print(0)", "print(input())"]

    async def score(program: str, metadata: dict[str, Any]) -> Any:
        text = f"```python\n{program}\n```"
        prompt, completion = (
            Prompt(id="p", text="?", metadata=metadata),
            Completion(text=text, token_ids=[], logprobs=[]),
        )
        return await scorer.score(prompt, completion, episode_id="e", max_tokens=8)

    good = {"inputs": ["1"], "outputs": ["1"]}
    episodes = await asyncio.gather(*(score(p, good) for p in programs), score("print(1)", {"tests": [{}]}))
    assert [episode.reward for episode in episodes] == [1.0, 0.0, 0.0, 0.0, 1.0, None]
    assert [episode.error is None for episode in episodes] == [True] * 5 + [False]
    assert "item 0 of `tests`" in episodes[-1].error and not scorer.wedged


def test_sandboxes_are_reused_and_replaced(isolation: str) -> None:
    reward = CodeReward(isolation=isolation, workers=1, timeout_s=5.0, memory_mb=300)
    metadata = {"inputs": ["1"], "outputs": ["1"]}
    good = "```\nprint(input())\n```"
    reward(response=good, metadata=metadata)
    pool = pool_for(reward.settings, 1)
    assert pool.mode == isolation
    with pool.sandbox() as sandbox:
        assert sandbox.nested and sandbox.seccomp
        os.kill(sandbox._process.pid, signal.SIGKILL)  # as the kernel does when memory runs out
        os.waitid(os.P_PID, sandbox._process.pid, os.WEXITED | os.WNOWAIT)
    assert [reward(response=good, metadata=metadata).value for _ in range(4)] == [1.0] * 4


def test_where_namespaces_do_not_nest_each_sandbox_serves_once(monkeypatch: pytest.MonkeyPatch, works: None) -> None:
    """As with a setuid bubblewrap: the sandbox is then its own watcher, with the same answers."""
    if choose(Settings()) != "bwrap":
        pytest.skip("only bubblewrap starts sandboxes that may not nest, and it is not usable here")
    start = isolation_module.start_command

    def without_capability(mode: str, settings: Settings) -> list[str]:
        command = start(mode, settings)
        at = command.index("--cap-add")
        return command[:at] + command[at + 2 :]

    monkeypatch.setattr("forge_plugin_code.pool.start_command", without_capability)
    pool = Pool(Settings(), 1)
    try:
        reward = CodeReward(timeout_s=5.0)
        cases = read_cases({"inputs": ["1", "2"], "outputs": ["1", "2"]}, None)
        asserts = read_cases({"tests": ["assert f(1) == 1"]}, None)
        assert isinstance(cases, StdioCases) and isinstance(asserts, AssertCases)
        for _ in range(3):
            assert run_stdio(pool, "print(input())", cases, reward) == (2, 2, "")
            assert run_asserts(pool, "def f(x): return x", asserts, reward) == (1, 1, "")
            assert run_asserts(pool, "def f(x): return 0", asserts, reward)[0] == 0
        with pool.sandbox() as sandbox:
            assert not sandbox.nested and sandbox.seccomp and sandbox.jobs == 0
    finally:
        pool.close()


def test_no_free_sandbox_is_an_error(isolation: str) -> None:
    reward = CodeReward(isolation=isolation, workers=1, timeout_s=3.0, wait_s=0.2, output_kb=100)
    metadata = {"inputs": ["1"], "outputs": ["1"]}
    reward(response="```\nprint(1)\n```", metadata=metadata)
    slow = threading.Thread(
        target=reward, kwargs={"response": "```\nimport time; time.sleep(2)\n```", "metadata": metadata}
    )
    slow.start()
    time.sleep(0.5)
    with pytest.raises(SandboxError, match="no sandbox was free in 0.2 s"):
        reward(response="```\nprint(1)\n```", metadata=metadata)
    slow.join()


def test_sandboxes_end_with_their_host(isolation: str) -> None:
    """A host that is killed leaves nothing behind, not even a program that would run for ever."""
    script = f"""
import threading, time
from forge_plugin_code.reward import CodeReward
from forge_plugin_code.verdict import run_asserts, run_stdio
reward = CodeReward(isolation={isolation!r}, workers=1, timeout_s=60.0, total_s=60.0)
metadata = {{"inputs": ["1"], "outputs": ["1"]}}
reward(response="```\\nprint(1)\\n```", metadata=metadata)
loop = "```\\nwhile True: pass\\n```"
threading.Thread(target=reward, kwargs=dict(response=loop, metadata=metadata), daemon=True).start()
time.sleep(0.5)
print("up", flush=True)
time.sleep(60)
"""
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None and host.stdout.readline() == "up\n"
    family = _descendants(host.pid)
    assert len(family) >= 3
    host.kill()
    host.wait()
    until = time.monotonic() + 10.0
    while (left := [pid for pid in family if _alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
