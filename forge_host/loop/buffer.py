"""Admission slots and the windowed queue that bound how old a trained token can be.

Trainer version V trains on groups V * groups_per_version up to (V + 1) * groups_per_version of the run. So a group
whose rollout starts while the generators have version v is no older than `max_policy_age` when it is among the first
`(v + 1 + max_policy_age) * groups_per_version` that are trained on. Two rules keep that true of every group:

- one is admitted only while fewer than so many, with v the generators' version now, were ever admitted (rejected ones
  give their slot back), so that all under way can still be trained on in time;
- groups are taken in the order of their admission, and one that is not finished is passed over only while it, and all
  that were passed over before it, still fit into later steps; else it is waited for. Without policy age none is passed
  over, so that a run repeats.

Neither needs the trainer's version, which is ahead of the generators' while an update is under way: what the trainer
has consumed tells it.

    ticket = await buffer.admit(); ...; buffer.finish(ticket, group); groups = await buffer.take(8)
"""

from __future__ import annotations

import asyncio
from collections import Counter

import attrs

from forge_host.errors import RunError
from forge_host.types import Group

#: Why a group is rejected whose prompt every reward returned None for, mostly because it has no target.
NOT_GRADABLE = "no reward can grade the prompt"


@attrs.define(eq=False)
class Ticket:
    """The right to roll out one group; `version` is the generator's when it was given."""

    number: int
    version: int
    group: Group | None = None


class Buffer:
    """See the module. `groups_per_version` is batch_size x sync_interval; all waits end when `fail` is called.

    `total`, when given, is what the run trains on altogether, so that its end starts no rollouts for nothing.
    """

    def __init__(
        self, *, groups_per_version: int, max_policy_age: int, starve_after: int, total: int | None = None
    ) -> None:
        self.groups_per_version, self.max_policy_age, self.starve_after = (
            groups_per_version,
            max_policy_age,
            starve_after,
        )
        self.total = total  # groups that the run needs; no more are admitted
        self.version = 0
        self.admitted = 0
        self.consumed = 0
        self._skipped = 0  # by how many groups the trainer's version is further than what was consumed; see `restore`
        self.rejected: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._live: dict[int, Ticket] = {}  # by number, which rises, and with it the version
        self.ready = 0  #: finished groups that wait to be taken
        self.next_ticket = 0
        self._failure: BaseException | None = None
        self._admitting: list[asyncio.Future[None]] = []
        self._taking: list[asyncio.Future[None]] = []
        self._wanted = 0  # groups that a `take` waits for

    @property
    def in_flight(self) -> int:
        return len(self._live) - self.ready

    async def admit(self) -> Ticket:
        """Wait for a slot."""
        while self._failure is None and self.admitted >= self._limit():
            await _wait(self._admitting)
        self._raise()
        return self._ticket()

    async def admit_round(self) -> list[Ticket]:
        """Wait until nothing is under way and slots are free, then take them all: which rollouts start together does
        not depend on what was finished when."""
        while self._failure is None and (self.in_flight or self.admitted >= self._limit()):
            await _wait(self._admitting)
        self._raise()
        return [self._ticket() for _ in range(self._limit() - self.admitted)]

    def _ticket(self) -> Ticket:
        ticket = Ticket(self.next_ticket, self.version)
        self.next_ticket += 1
        self.admitted += 1
        self._live[ticket.number] = ticket
        return ticket

    def _limit(self) -> int:
        limit = self._due(self.version)
        return limit if self.total is None else min(limit, self.total)

    def _due(self, version: int) -> int:
        """How many groups the run has trained on when the last one admitted at `version` must be among them."""
        return (version + 1 + self.max_policy_age) * self.groups_per_version - self._skipped

    async def finish(self, ticket: Ticket, group: Group | None, reason: str = "") -> None:
        """A rollout is over: with a group to train on, or rejected for a reason, which gives its slot back."""
        if group is not None:
            ticket.group = group
            self.ready += 1
            self._in_a_row.clear()
            if not self.in_flight:
                _wake(self._admitting)  # a round is over
        else:
            del self._live[ticket.number]
            self.admitted -= 1
            self.rejected[reason] += 1
            self._in_a_row[reason] += 1
            if self._in_a_row.total() >= self.starve_after:
                hopeless = set(self._in_a_row) == {NOT_GRADABLE}
                starved = RunError(
                    f"starved: the last {self._in_a_row.total()} groups were all rejected "
                    f"({', '.join(f'{why}: {n}' for why, n in self._in_a_row.most_common(3))})",
                    fix="give the dataset a target_field; `forge-host data show CONFIG --grade` lists such prompts"
                    if hopeless
                    else "make the task easier or harder, raise n_samples, or choose another sampler",
                )
                await self.fail(starved)
            _wake(self._admitting)
        self._offer()

    async def take(self, count: int) -> list[Group]:
        """Wait for `count` groups to train on; see the module for which."""
        while self._failure is None and (chosen := self._choose(count)) is None:
            self._wanted = count
            await _wait(self._taking)
        self._raise()
        assert chosen is not None
        for ticket in chosen:
            del self._live[ticket.number]
        self.consumed += count
        self.ready -= count
        return [t.group for t in chosen if t.group is not None]

    def _choose(self, count: int) -> list[Ticket] | None:
        if self.ready < count:
            return None
        chosen: list[Ticket] = []
        passed = 0
        for ticket in self._live.values():
            if ticket.group is not None:
                chosen.append(ticket)
                if len(chosen) == count:
                    return chosen
                continue
            passed += 1
            if not self.max_policy_age or passed > self._due(ticket.version) - self.consumed - count:
                return None
        return None

    def _offer(self) -> None:
        """Wake `take` when it may go on. Not for every group: a large batch would look thousands of times in vain."""
        if self._taking and self.ready >= self._wanted:
            _wake(self._taking)

    async def publish(self, version: int) -> None:
        """Every generator now has this version."""
        self.version = version
        _wake(self._admitting)
        self._offer()

    def restore(self, version: int, consumed: int, next_ticket: int) -> None:
        """Go on where a checkpoint was written; before anything is admitted.

        A run that goes on between two publishes gives its generators a version that it would not have had otherwise.
        """
        assert not self._live and self.admitted == 0
        self.version, self.next_ticket = version, next_ticket
        self.admitted = self.consumed = consumed
        self._skipped = version * self.groups_per_version + consumed % self.groups_per_version - consumed

    async def fail(self, error: BaseException) -> None:
        """End every wait with this error."""
        self._failure = self._failure or error
        _wake(self._admitting)
        _wake(self._taking)

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


async def _wait(queue: list[asyncio.Future[None]]) -> None:
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append(woken)
    await woken


def _wake(queue: list[asyncio.Future[None]]) -> None:
    for woken in queue:
        if not woken.done():
            woken.set_result(None)
    queue.clear()
