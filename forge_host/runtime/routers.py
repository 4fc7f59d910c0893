"""Routers: which replica of a service takes a request. A router is a component; these are the built-in ones.

    services: {generator: {num_replicas: 4, router: prefix-affinity}}

`choose` gets the replicas that have a free place, at least one, and returns one of them. It is called for every
request, so it is plain arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
import xxhash
from attrs.validators import ge

from forge_host.api import Load, Request, Router, Use, field


def least_loaded(free: Sequence[Load]) -> Load:
    """The replica with the fewest requests, the first of equals."""
    return min(free, key=lambda replica: replica.in_flight)


@attrs.frozen
class LeastLoaded:
    """The replica that answers the fewest requests."""

    def choose(self, free: Sequence[Load], request: Request) -> Load:
        return min(free, key=lambda replica: replica.in_flight)


@attrs.frozen
class RoundRobin:
    """One replica after the other."""

    _next: Iterator[int] = attrs.field(factory=itertools.count, init=False, repr=False, eq=False)

    def choose(self, free: Sequence[Load], request: Request) -> Load:
        return free[next(self._next) % len(free)]


@attrs.frozen(kw_only=True)
class SessionAffinity:
    """Requests of one session (`route(..., session="x")`) go to one replica; the others to the least loaded.

    When replicas come and go, only the sessions of those that went move.
    """

    def choose(self, free: Sequence[Load], request: Request) -> Load:
        return _ranked(free, request.session.encode())[0] if request.session else least_loaded(free)


@attrs.frozen(kw_only=True)
class PrefixAffinity:
    """Requests that begin alike go to one replica, whose cache has the beginning; not to one that is overloaded."""

    tokens: int = field(default=32, help="length of the beginning that is compared", unit="tokens", validator=ge(1))
    max_imbalance: int = field(
        default=8, help="requests that a replica may have above the least loaded one before it is passed over",
        unit="requests", validator=ge(0),
    )  # fmt: skip

    def choose(self, free: Sequence[Load], request: Request) -> Load:
        beginning = request.args[0] if request.args else ""
        if not isinstance(beginning, (str, bytes, list, tuple)):
            return least_loaded(free)
        bound = least_loaded(free).in_flight + self.max_imbalance
        ranked = _ranked(free, repr(beginning[: self.tokens]).encode())
        return next(replica for replica in ranked if replica.in_flight <= bound)


def _ranked(free: Sequence[Load], key: bytes) -> list[Load]:
    """Replicas in an order that depends on `key` only, whichever of them are there (rendezvous hashing)."""
    return sorted(free, key=lambda replica: xxhash.xxh64_intdigest(key, seed=replica.index), reverse=True)


def builtin_router(use: Use) -> Router:
    """The router of a service that was started without a configuration; only the built-in ones are known by name.

    Raises:
        ForgeError: no such router, or a wrong setting.
    """
    if use.ref in ("least-loaded", "builtin/least-loaded") and not use.config:
        return LeastLoaded()
    from forge_host.plugins import PluginHost

    router: Router = PluginHost.load(()).build("router", use)
    return router
