"""One reply's tests, run in sandboxes from a pool: (passed, total, why the first that failed did).

Expected values stay out of reach of the tested code. Printed output is compared here, in the host's process. Asserting
tests run in a second sandbox, see `forge_plugin_code.inside.tester`.
"""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from forge_plugin_code.cases import AssertCases, CasesError, StdioCases
from forge_plugin_code.compare import same_output
from forge_plugin_code.pool import START_S, Pool, Sandbox, SandboxError

if TYPE_CHECKING:
    from forge_plugin_code.reward import CodeReward

GRACE_S = 1.0  # for the sandbox to report what it ended itself
Outcome = tuple[int, int, str]


def run_stdio(pool: Pool, code: str, cases: StdioCases, config: CodeReward) -> Outcome:
    """Runs the program once for each input, in one sandbox, in processes of their own."""
    passed, note, total = 0, "", len(cases.inputs)
    with pool.sandbox() as sandbox:
        sandbox.start_job({"kind": "stdio", "code": code, "limits": config.limits})
        _started(sandbox)
        deadline = time.monotonic() + config.total_s
        for number, (given, expected) in enumerate(zip(cases.inputs, cases.outputs, strict=True)):
            if time.monotonic() >= deadline:
                note = note or f"no time left for test {number} of {total}"
                break
            sandbox.send({"input": given})
            event = _outcome(sandbox, min(deadline, time.monotonic() + config.timeout_s) + GRACE_S)
            why = _failure(event)
            if not why and not same_output(event["output"], expected, config.compare, config.tolerance):
                why = f"printed {event['output'][:80]!r}"
            passed += not why
            note = note or (f"test {number}: {why}" if why else "")
            if sandbox.ended or (why and not config.partial_credit):
                break
        if not sandbox.ended:
            sandbox.send({"end": True})
    return passed, total, note


def run_asserts(pool: Pool, code: str, cases: AssertCases, config: CodeReward) -> Outcome:
    """Runs the program in one sandbox and the tests in another; a socket pair joins them."""
    theirs, ours = socket.socketpair()
    limits = config.limits | {"timeout_s": min(config.timeout_s, config.total_s)}
    tests = {"setup": cases.setup, "units": list(cases.units), "entry_point": cases.entry_point}
    with theirs, ours, pool.sandbox() as tester, pool.sandbox() as candidate:
        candidate.start_job({"kind": "candidate", "code": code, "limits": limits}, (theirs.fileno(),))
        theirs.close()
        stop = not config.partial_credit
        # The tests' process prints one line a test; its own output limit is not the program's.
        roomy = limits | {"output_bytes": 64 * 1024**2, "memory_bytes": max(limits["memory_bytes"], 512 * 1024**2)}
        tester.start_job({"kind": "tests", "limits": roomy, "stop": stop, **tests}, (ours.fileno(),))
        ours.close()
        _started(candidate)
        _started(tester)
        event = _outcome(tester, time.monotonic() + limits["timeout_s"] + GRACE_S)
        lines = [json.loads(line) for line in event["output"].splitlines() if line.endswith("}")]
        for line in lines:
            if "error" in line:
                raise CasesError(line["error"])
        if event["status"] is None:
            raise SandboxError("the sandbox of the tests ended; their process is not the tested code's")
        failures = [line["failure"] for line in lines]
        passed, note = failures.count(""), next((f for f in failures if f), "")
        if len(failures) < len(cases.units) and not (stop and note):
            if not event["why"]:
                raise CasesError(f"the process of the tests ended early: {event['errors'].strip()[-200:]}")
            note = note or _failure(event)
        if event["why"] != "time":
            _outcome(candidate, time.monotonic() + GRACE_S)  # it ends when the tests' process has
        return passed, len(cases.units), note


def _started(sandbox: Sandbox) -> None:
    """Waits until the program is about to run: what happens later is its own doing."""
    event = sandbox.receive(time.monotonic() + START_S)
    if event is None or event.get("event") != "started":
        raise SandboxError(f"the sandbox did not start a job: {event}")


def _outcome(sandbox: Sandbox, deadline: float) -> dict[str, Any]:
    """What became of a process; status None when the sandbox ended, or hung, with it."""
    event = sandbox.receive(deadline)
    if event is not None and event.get("event") == "broken":
        raise SandboxError(f"the sandbox failed: {event.get('why')}")
    if event is None:
        sandbox.ended = True
        return {"why": "gone", "status": None, "output": "", "errors": ""}
    return event


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _failure(event: dict[str, Any]) -> str:
    """Why a run is no success; empty if it ended by itself with status 0."""
    status = event["status"]
    if event["why"]:
        return {"time": "out of time", "output": "printed too much", "gone": "ended its sandbox"}.get(
            event["why"], event["why"]
        )
    if status < 0:
        return f"killed by {_signal(-status)}"
    last = event["errors"].strip().splitlines()[-1:] or [""]
    return f"exit status {status}: {last[0][:200]}" if status else ""
