"""Replicas sorted by how many requests each has in flight; the least loaded one is found in constant time.

Why: a service may have a thousand replicas and serve thousands of requests a second, so no request may look at all.

    loads = Loads(limit=256)
    loads.add(replica)
    replica = loads.least()     # None when every replica is full
    loads.move(replica, 1)      # one request more; -1 when it is done
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Loaded(Protocol):
    """Anything that counts its requests in flight."""

    in_flight: int


R = TypeVar("R", bound=Loaded)


class Loads(Generic[R]):
    """`limit` is the most requests one replica may have. Equally loaded replicas take turns."""

    def __init__(self, limit: int) -> None:
        self._buckets: list[dict[R, None]] = [{} for _ in range(limit + 1)]
        self._lowest = 0  # no bucket below this one has a replica

    def add(self, replica: R) -> None:
        self._buckets[replica.in_flight][replica] = None
        self._lowest = min(self._lowest, replica.in_flight)

    def remove(self, replica: R) -> None:
        """Take it out; nothing happens when it is not in."""
        self._buckets[replica.in_flight].pop(replica, None)

    def least(self) -> R | None:
        """The replica with the fewest requests that may take one more."""
        full = len(self._buckets) - 1
        while self._lowest < full and not self._buckets[self._lowest]:
            self._lowest += 1
        return next(iter(self._buckets[self._lowest])) if self._lowest < full else None

    def move(self, replica: R, change: int) -> None:
        """Change a replica's requests in flight, whether it is in or not."""
        here = replica in self._buckets[replica.in_flight]
        if here:
            del self._buckets[replica.in_flight][replica]
        replica.in_flight += change
        if here:
            self.add(replica)
