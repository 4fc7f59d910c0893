"""Routers: which replica a request goes to, alone and inside a service."""

import asyncio
import collections

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_host.api import Request, Router, Use
from forge_host.config.schema import ServiceConfig
from forge_host.errors import ForgeError, RunError
from forge_host.runtime.routers import LeastLoaded, PrefixAffinity, RoundRobin, SessionAffinity, builtin_router
from forge_host.runtime.service import Service


@attrs.frozen
class Load:
    index: int
    in_flight: int = 0


def loads(*in_flight: int) -> list[Load]:
    return [Load(i, n) for i, n in enumerate(in_flight)]


def test_least_loaded_and_round_robin() -> None:
    assert LeastLoaded().choose(loads(3, 1, 2), Request("f")).index == 1
    router = RoundRobin()
    assert [router.choose(loads(9, 0, 0), Request("f")).index for _ in range(5)] == [0, 1, 2, 0, 1]


@given(st.text(min_size=1), st.sets(st.integers(0, 9), min_size=2))
def test_a_session_stays_until_its_own_replica_goes(session: str, there: set[int]) -> None:
    router, request = SessionAffinity(), Request("generate", session=session)
    replicas = [Load(i) for i in sorted(there)]
    home = router.choose(replicas, request)
    assert router.choose(list(reversed(replicas)), request) is home
    other = [replica for replica in replicas if replica is not home]
    for gone in other:
        assert router.choose([r for r in replicas if r is not gone], request) is home
    assert router.choose(other, request) is not home


def test_sessions_and_prefixes_spread_evenly() -> None:
    replicas = loads(*[0] * 8)
    for router, requests in (
        (SessionAffinity(), [Request("f", session=f"s{i}") for i in range(4000)]),
        (PrefixAffinity(), [Request("f", ([i, 1, 2],)) for i in range(4000)]),
    ):
        counts = collections.Counter(router.choose(replicas, request).index for request in requests)
        assert len(counts) == 8 and min(counts.values()) > 400 and max(counts.values()) < 600


def test_prompts_that_begin_alike_meet_unless_that_replica_is_overloaded() -> None:
    router = PrefixAffinity(tokens=4, max_imbalance=2)
    homes = {router.choose(loads(0, 0, 0), Request("f", ([7, 7, 7, 7, tail],))).index for tail in range(20)}
    assert len(homes) == 1
    home = homes.pop()
    busy = [Load(i, 3 if i == home else 0) for i in range(3)]
    assert router.choose(busy, Request("f", ([7, 7, 7, 7],))).index != home
    assert router.choose([Load(i, 2 if i == home else 0) for i in range(3)], Request("f", ([7] * 4,))).index == home
    assert router.choose(loads(1, 0), Request("f", (object(),))).index == 1


class Stub:
    """A handle whose one endpoint answers its own number."""

    def __init__(self, index: int) -> None:
        self.index, self.dead = index, None
        self.say = self

    async def call_one(self, *args, timeout_s=None) -> int:
        await asyncio.sleep(0)
        return self.index

    async def shutdown(self, timeout_s: float = 1.0) -> None:
        pass


async def started(router: Router | None, **options) -> Service:
    async def start(index: int, restart: int) -> Stub:
        return Stub(index)

    service = Service("echo", ServiceConfig(num_replicas=4, **options), start, router)
    await service.start()
    return service


async def test_a_service_asks_its_router() -> None:
    service = await started(SessionAffinity())
    for session in ("a", "b", "c"):
        assert len({await service.say.route(session=session) for _ in range(5)}) == 1
    assert {await service.say.route(session=f"s{i}") for i in range(50)} == {0, 1, 2, 3}
    service = await started(RoundRobin())
    assert [await service.say.route() for _ in range(4)] == [0, 1, 2, 3]
    async with service.session() as one:
        assert len({await one.say.route() for _ in range(4)}) == 1


async def test_a_full_replica_is_not_offered_and_requests_still_wait_their_turn() -> None:
    service = await started(SessionAffinity(), max_concurrent_requests=1)
    answers = await asyncio.gather(*(service.say.route(session="a") for _ in range(12)))
    assert set(answers) == {0, 1, 2, 3} and service.get_metrics()["in_flight"] == 0


async def test_a_router_that_invents_a_replica_is_named() -> None:
    class Wrong:
        def choose(self, free, request):
            return Load(99)

    service = await started(Wrong())
    with pytest.raises(RunError, match=r"router of service echo chose Load\(index=99, in_flight=0\)"):
        await service.say.route()


def test_built_in_ones_are_known_by_name_and_others_are_refused() -> None:
    assert isinstance(builtin_router(ServiceConfig().router), LeastLoaded)
    assert builtin_router(Use("prefix-affinity", {"tokens": 8})) == PrefixAffinity(tokens=8)
    with pytest.raises(ForgeError, match="nearest"):
        builtin_router(Use("nearest"))
