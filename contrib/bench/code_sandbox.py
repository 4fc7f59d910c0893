"""How fast the reward `code` grades trivial programs: verdicts a second, latency, and what starting a sandbox costs.

    python contrib/bench/code_sandbox.py --isolation bwrap --workers 2 --seconds 5

Prints one JSON object a kind of test. A verdict is a whole call of the reward with a warm pool: fresh namespaces, the
program, comparison. `cpu_ms` is processor time a verdict, all processes together, start-up included (null with bwrap,
which does not wait for what it started). `cold_start_ms` is a new sandbox from nothing to ready: before the first
verdict, and after a program has ended its sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import threading
import time
from typing import Any

from forge_plugin_code.isolation import Settings, choose
from forge_plugin_code.pool import Sandbox, close_pools
from forge_plugin_code.reward import CodeReward

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "stdio": ("print(int(input()) + 1)", {"inputs": ["1"], "outputs": ["2"]}),
    "assert": ("def f(x):\n    return x + 1", {"tests": ["assert f(1) == 2"]}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    mode = choose(Settings(isolation=arguments.isolation))
    print(json.dumps({"isolation": mode, "workers": arguments.workers, "cpus": os.cpu_count(), **cold_start(mode)}))
    for kind in KINDS:
        print(json.dumps(measure(mode, kind, arguments.workers, arguments.seconds)))


def cold_start(mode: str, count: int = 10) -> dict[str, float]:
    """Milliseconds from nothing to ready, median of `count`."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        sandbox = Sandbox(mode, Settings())
        sandbox.wait_ready()
        times.append(time.perf_counter() - start)
        sandbox.close()
    return {"cold_start_ms": round(sorted(times)[count // 2] * 1e3, 1)}


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(mode: str, kind: str, workers: int, seconds: float) -> dict[str, Any]:
    before = cpu_seconds()
    reward = CodeReward(isolation=mode, workers=workers)
    code, metadata = KINDS[kind]
    response = f"```python\n{code}\n```"
    times: list[float] = []
    wrong: list[str] = []

    def work(until: float) -> None:
        while time.perf_counter() < until:
            start = time.perf_counter()
            result = reward(response=response, metadata=metadata)
            times.append(time.perf_counter() - start)
            if result is None or result.value != 1.0:
                wrong.append(str(result))

    work(time.perf_counter() + 0.5)  # the pool is up after this
    warm_up = len(times)
    times.clear()
    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(begin + seconds,)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    close_pools()  # ends the sandboxes, so that their processor time is counted
    spent = cpu_seconds() - before
    count = warm_up + len(times)
    times.sort()
    return {
        "tests": kind,
        "verdicts": len(times),
        "wrong": wrong[:3],
        "cpu_ms": round(spent / count * 1e3, 1) if mode == "namespaces" else None,
        "verdicts_per_s": round(len(times) / elapsed, 1),
        "p50_ms": round(times[len(times) // 2] * 1e3, 1),
        "p95_ms": round(times[len(times) * 95 // 100] * 1e3, 1),
        "max_ms": round(times[-1] * 1e3, 1),
    }


if __name__ == "__main__":
    main()
