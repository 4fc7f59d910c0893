"""Admission slots and the windowed queue that bound how old a trained token can be.

A rollout may start only while fewer than `(version + 1 + max_policy_age) * groups_per_version` groups were ever
admitted (rejected ones give their slot back). Groups are taken in the order they finish, except that one which would
be too old at the next version is taken first and waited for. So with V the trainer's version when a group is trained
and v the version it was admitted at: V - v <= max_policy_age. With max_policy_age 0 this is plain synchronous training.

    ticket = await buffer.admit(); ...; buffer.finish(ticket, group); groups = await buffer.take(8)
"""

from __future__ import annotations

import asyncio
from collections import Counter

import attrs

from forge_host.errors import RunError
from forge_host.types import Group


@attrs.define(eq=False)
class Ticket:
    """The right to roll out one group; `version` is the generator's when it was given."""

    number: int
    version: int
    group: Group | None = None


class Buffer:
    """See the module. `groups_per_version` is batch_size x sync_interval; all waits end when `fail` is called."""

    def __init__(self, *, groups_per_version: int, max_policy_age: int, starve_after: int) -> None:
        self.groups_per_version, self.max_policy_age, self.starve_after = (
            groups_per_version,
            max_policy_age,
            starve_after,
        )
        self.version = 0
        self.admitted = 0
        self.consumed = 0
        self.rejected: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._live: dict[int, Ticket] = {}
        self.next_ticket = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Condition()

    @property
    def in_flight(self) -> int:
        return sum(t.group is None for t in self._live.values())

    @property
    def ready(self) -> int:
        return sum(t.group is not None for t in self._live.values())

    async def admit(self) -> Ticket:
        """Wait for a slot."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or self.admitted < self._limit())
            self._raise()
            ticket = Ticket(self.next_ticket, self.version)
            self.next_ticket += 1
            self.admitted += 1
            self._live[ticket.number] = ticket
            return ticket

    def _limit(self) -> int:
        return (self.version + 1 + self.max_policy_age) * self.groups_per_version

    async def finish(self, ticket: Ticket, group: Group | None, reason: str = "") -> None:
        """A rollout is over: with a group to train on, or rejected for a reason, which gives its slot back."""
        async with self._changed:
            if group is not None:
                ticket.group = group
                self._in_a_row.clear()
            else:
                del self._live[ticket.number]
                self.admitted -= 1
                self.rejected[reason] += 1
                self._in_a_row[reason] += 1
                if self._in_a_row.total() >= self.starve_after:
                    self._failure = self._failure or RunError(
                        f"starved: the last {self._in_a_row.total()} groups were all rejected "
                        f"({', '.join(f'{why}: {n}' for why, n in self._in_a_row.most_common(3))})",
                        fix="make the task easier or harder, raise n_samples, or choose another sampler",
                    )
            self._changed.notify_all()

    async def take(self, count: int) -> list[Group]:
        """Wait for `count` groups to train on, those about to be too old first."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or self._choose(count) is not None)
            self._raise()
            chosen = self._choose(count)
            assert chosen is not None
            for ticket in chosen:
                del self._live[ticket.number]
            self.consumed += count
            self._changed.notify_all()
            return [t.group for t in chosen if t.group is not None]

    def _choose(self, count: int) -> list[Ticket] | None:
        live = sorted(self._live.values(), key=lambda t: t.number)
        due = [t for t in live if t.version + self.max_policy_age <= self.version][:count]
        rest = [t for t in live if t not in due and t.group is not None][: count - len(due)]
        chosen = due + rest
        return chosen if len(chosen) == count and all(t.group is not None for t in chosen) else None

    async def publish(self, version: int) -> None:
        """Every generator now has this version."""
        async with self._changed:
            self.version = version
            self._changed.notify_all()

    def restore(self, version: int, consumed: int, next_ticket: int) -> None:
        """Go on where a checkpoint was written; before anything is admitted."""
        assert not self._live and self.admitted == 0
        self.version, self.next_ticket = version, next_ticket
        self.admitted = self.consumed = consumed

    async def fail(self, error: BaseException) -> None:
        """End every wait with this error."""
        async with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
