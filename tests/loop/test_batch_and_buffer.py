"""Packing keeps every token and nothing else; the buffer keeps the staleness bound."""

import asyncio
import random

import pytest

from forge_host.errors import RunError, UsageError
from forge_host.loop.batch import Row, balance, make_batches, num_bins, rows_of, unpad
from forge_host.loop.buffer import NOT_GRADABLE, Buffer
from forge_host.types import Completion, Episode, Group, Prompt


def completion(prompt: int, response: int, start: int = 0, reason: str = "stop") -> Completion:
    return Completion(
        text="", prompt_ids=list(range(100, 100 + prompt)), token_ids=list(range(start, start + response)),
        logprobs=[-0.5 * i for i in range(response)], policy_versions=[0] * response, finish_reason=reason,
    )  # fmt: skip


def group(*rewards: float | None, length: int = 3) -> Group:
    prompt = Prompt(id="p", text="x")
    episodes = tuple(
        Episode(id=f"p/{i}", prompt=prompt, completion=completion(2, length + i), reward=r)
        for i, r in enumerate(rewards)
    )
    return Group(id="p", prompt=prompt, episodes=episodes)


def test_packed_batches_hold_each_token_once() -> None:
    rows = [
        Row(completion(3, n, start=10 * n), group_id=n, reward=float(n), advantage=float(n)) for n in (4, 1, 7, 2, 5)
    ]
    inputs, targets = make_batches(rows, 2)
    assert sum(i["tokens"].numel() for i in inputs) == sum(r.num_tokens for r in rows)
    seen = {}
    for given, target in zip(inputs, targets, strict=True):
        start = 0
        for b in range(len(target["lengths"])):
            p, n = int(target["prompt_lengths"][b]), int(target["lengths"][b])
            span = slice(start, start + p + n)
            assert given["positions"][0, span].tolist() == list(range(p + n))
            assert given["sequence_ids"][0, span].unique().tolist() == [b]
            assert given["tokens"][0, start + p : start + p + n].tolist() == target["response"][b, :n].tolist()
            assert target["padding_mask"][b].sum() == n and not target["padding_mask"][b, n:].any()
            assert target["advantages"][b, :n].eq(n).all() and target["ref_logprobs"] is None
            assert unpad(target["generator_logprobs"], target["lengths"])[b].tolist() == [-0.5 * i for i in range(n)]
            seen[n] = float(target["rewards"][b])
            start += p + n
    assert seen == {n: float(n) for n in (4, 1, 7, 2, 5)}


def test_balance_uses_every_bin() -> None:
    rows = [Row(completion(1, 50), 0, 0.0)] + [Row(completion(1, 2), 0, 0.0) for _ in range(3)]
    assert sorted(len(b) for b in balance(rows, 4)) == [1, 1, 1, 1]
    assert sorted(sum(r.num_tokens for r in b) for b in balance(rows, 2)) == [9, 51]


def test_a_group_stays_together_unless_a_bin_would_be_empty_or_far_too_full() -> None:
    rows = [Row(completion(4, 5), group, 0.0) for group in range(4) for _ in range(3)]
    assert [sorted({r.group_id for r in b}) for b in balance(rows, 2)] == [[0, 2], [1, 3]]
    lonely = [Row(completion(4, 5), 0, 0.0) for _ in range(8)]
    assert [len(b) for b in balance(lonely, 4)] == [2, 2, 2, 2]
    uneven = [Row(completion(4, 60), 0, 0.0) for _ in range(8)] + [Row(completion(4, 5), 1, 0.0)]
    loads = [sum(r.num_tokens for r in b) for b in balance(uneven, 2)]
    assert max(loads) < 1.2 * min(loads)


def test_bins_follow_memory_and_ranks() -> None:
    rows = [Row(completion(1, 9), 0, 0.0) for _ in range(8)]
    assert num_bins(rows, data_parallel=1, accumulation=1, micro_batch_tokens=1000) == 1
    assert num_bins(rows, data_parallel=2, accumulation=2, micro_batch_tokens=1000) == 4
    assert num_bins(rows, data_parallel=1, accumulation=1, micro_batch_tokens=30) == 3
    with pytest.raises(UsageError, match="8 responses cannot fill 16 micro-batches"):
        num_bins(rows, data_parallel=4, accumulation=4, micro_batch_tokens=1000)


def test_ungraded_empty_and_truncated_rows() -> None:
    rows = rows_of([group(1.0, None, 0.0), group(0.5, length=0)])
    assert [(r.group_id, r.reward) for r in rows] == [(0, 1.0), (0, 0.0)]
    prompt = Prompt(id="q", text="x")
    cut = Group(
        id="q", prompt=prompt,
        episodes=(Episode(id="q/0", prompt=prompt, completion=completion(1, 4, reason="length"), reward=1.0),),
    )  # fmt: skip
    (row,) = rows_of([cut], mask_truncated=True)
    _, (target,) = make_batches([row], 1)
    assert not target["padding_mask"].any() and target["lengths"].tolist() == [4]


class Race:
    """A trainer whose weights reach the generators late, rollouts of very different lengths, and rejected groups."""

    def __init__(self, seed: int, *, age: int, batch: int, sync_interval: int) -> None:
        self.rng, self.batch, self.sync_interval = random.Random(seed), batch, sync_interval
        self.buffer = Buffer(groups_per_version=batch * sync_interval, max_policy_age=age, starve_after=10**9)
        self.step = self.version = 0  # the trainer's
        self.worst = self.most = 0

    async def turns(self, *choices: int) -> None:
        for _ in range(self.rng.choice(choices)):
            await asyncio.sleep(0)

    async def roll(self, buffer: Buffer, ticket) -> None:
        await self.turns(1, 1, 2, 3, 40)
        label = Group(id=str(ticket.version), prompt=Prompt(id="p", text="x"), episodes=())
        await buffer.finish(ticket, label if self.rng.random() > 0.2 else None, "zero variance")

    async def produce(self, buffer: Buffer) -> None:
        while True:
            asyncio.get_running_loop().create_task(self.roll(buffer, await buffer.admit()))

    async def spread(self, version: int) -> None:
        await self.turns(0, 1, 20)
        await self.buffer.publish(version)

    async def run(self, steps: int) -> None:
        producer, update = asyncio.create_task(self.produce(self.buffer)), None
        for _ in range(steps):
            groups = await asyncio.wait_for(self.buffer.take(self.batch), 10)
            self.worst = max(self.worst, *(self.version - int(g.id) for g in groups))
            self.most = max(self.most, self.buffer.in_flight + self.buffer.ready + self.batch)
            await self.turns(0, 1, 5)
            self.step += 1
            if self.step % self.sync_interval == 0:
                if update is not None:
                    await update
                self.version += 1
                update = asyncio.create_task(self.spread(self.version))
        producer.cancel()
        if update is not None:
            await update

    def resume(self) -> None:
        """As the controller does: between two publishes the version that generators get is a new one."""
        old, self.version = self.buffer, self.version + (1 if self.step % self.sync_interval else 0)
        self.buffer = Buffer(
            groups_per_version=old.groups_per_version, max_policy_age=old.max_policy_age, starve_after=10**9
        )
        self.buffer.restore(self.version, self.step * self.batch, old.next_ticket)


@pytest.mark.parametrize("age", [0, 1, 2, 3])
@pytest.mark.parametrize(("batch", "sync_interval"), [(1, 1), (4, 1), (4, 3)])
async def test_no_group_is_trained_too_old(age: int, batch: int, sync_interval: int) -> None:
    worst = most = 0
    for seed in range(20):
        race = Race(seed, age=age, batch=batch, sync_interval=sync_interval)
        await race.run(31)
        race.resume()
        await race.run(29)
        worst, most = max(worst, race.worst), max(most, race.most)
    assert worst == age, "the bound is kept, and reached"
    assert most == (age + 1) * batch * sync_interval, "all slots are used, and no more"


async def test_a_long_rollout_stalls_no_step_that_can_do_without_it() -> None:
    buffer = Buffer(groups_per_version=2, max_policy_age=1, starve_after=100)
    tickets = [await buffer.admit() for _ in range(4)]
    group = Group(id="g", prompt=Prompt(id="p", text="x"), episodes=())
    for ticket in tickets[1:]:
        await buffer.finish(ticket, group)
    await asyncio.wait_for(buffer.take(2), 1)
    await buffer.publish(1)
    await buffer.finish(await buffer.admit(), group)
    late = asyncio.create_task(buffer.take(2))
    await asyncio.sleep(0.01)
    assert not late.done(), "another step without it, and it would be too old"
    await buffer.finish(tickets[0], group)
    await asyncio.wait_for(late, 1)


async def test_starvation_is_an_error_with_the_reason() -> None:
    buffer = Buffer(groups_per_version=2, max_policy_age=0, starve_after=5)
    for _ in range(5):
        await buffer.finish(await buffer.admit(), None, "all rewards equal")
    with pytest.raises(RunError, match=r"starved: the last 5 groups were all rejected \(all rewards equal: 5\)"):
        await buffer.take(2)
    blind = Buffer(groups_per_version=2, max_policy_age=0, starve_after=5)
    for _ in range(5):
        await blind.finish(await blind.admit(), None, NOT_GRADABLE)
    with pytest.raises(RunError, match=r"no reward can grade the prompt: 5\); give .* target_field; .*--grade"):
        await blind.take(2)


async def test_no_more_groups_are_admitted_than_the_run_needs() -> None:
    buffer = Buffer(groups_per_version=2, max_policy_age=3, starve_after=100, total=3)
    tickets = [await buffer.admit() for _ in range(3)]
    waiting = asyncio.create_task(buffer.admit())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await buffer.finish(tickets[0], None, "rejected")
    assert (await asyncio.wait_for(waiting, 1)).number == 3, "a rejected group is replaced"
