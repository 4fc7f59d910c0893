"""What a service adds to a remote call: `service.say.route(x)` beside Monarch's own `actor.say.call_one(x)`.

    python contrib/bench/route.py [--burst 2000] [--rounds 7]

One process answers both, in bursts of concurrent calls that take turns, so that both see the same machine. The ratio is
that of the medians. Included in `route`: the choice of a replica, its slots, the deadline, the translation of errors.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from monarch.actor import concurrent_endpoint

from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.session import Session


class Echo(ForgeActor):
    """Says what it is told."""

    @concurrent_endpoint
    async def say(self, word: int) -> int:
        return word


async def awaited(future: Any) -> Any:
    return await future


async def burst(count: int, call: Callable[[int], Awaitable[int]]) -> float:
    """Seconds a call, `count` at once."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(call(i) for i in range(count)))
    assert answers == list(range(count))
    return (time.perf_counter() - began) / count


async def measure(count: int, rounds: int) -> None:
    async with Session():
        service = await Echo.options(max_concurrent_requests=count).as_service()
        raw = service.replicas[0].handle._actor.say

        async def direct(word: int) -> int:
            return await awaited(raw.call_one(word))

        times: dict[str, list[float]] = {"call_one": [], "route": []}
        for number in range(rounds + 1):
            found = {"call_one": await burst(count, direct), "route": await burst(count, service.say.route)}
            for name, seconds in found.items():
                if number:  # the first round warms up
                    times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, seconds in medians.items():
        print(f"{name:10} {seconds * 1e6:6.0f} us a call, bursts of {count}, median of {rounds}")
    print(f"ratio      {medians['route'] / medians['call_one']:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    asyncio.run(measure(options.burst, options.rounds))


if __name__ == "__main__":
    main()
