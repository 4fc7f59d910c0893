"""How many episodes a second the controller moves, with a thousand replicas that answer at once and one core.

    python contrib/bench/controller.py [--episodes 100000] [--replicas 1000] [--group 8] [--profile]

Real are the services, their queues and deadlines, the handles, the buffer, and in the second table the whole loop:
controller, rollouts, ledger, rollout record, packing, advantages. Stubs are the processes: a generator's and a reward's
answer comes within LATENCY seconds, the trainer's at once. Peak memory is that of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from forge_host.api import Receipt
from forge_host.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    RecordConfig,
    RewardConfig,
    ServiceConfig,
    TrainingConfig,
)
from forge_host.loop.buffer import Buffer
from forge_host.loop.controller import Controller
from forge_host.loop.ledger import check_ledger
from forge_host.loop.roles import Roles
from forge_host.loop.rollout import Roller
from forge_host.loop.rundir import RunDirectory
from forge_host.loop.step import Stepper
from forge_host.loop.tracking import Trackers
from forge_host.plugins import PluginHost
from forge_host.plugins.calling import CallByName
from forge_host.runtime.handle import ActorHandle
from forge_host.runtime.service import Service
from forge_host.types import Completion, Episode, Group, Prompt, RunInfo, SamplingParams, Use, Verdict

LATENCY = 0.02
TOKENS = 32


class Clock:
    """Wakes everybody who waits, every LATENCY seconds; one timer for all, as the stubs' cost is not to be measured."""

    tick: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self.tick is None or self.tick.done():
            self.tick = loop.create_future()
            loop.call_later(LATENCY, self.tick.set_result, None)
        await asyncio.shield(self.tick)


CLOCK = Clock()


class Endpoint:
    """An endpoint of a process that is not there; `reply` makes the answer."""

    def __init__(self, reply: Callable[..., Any], latency: float) -> None:
        self.reply, self.latency = reply, latency

    async def call_one(self, *args: Any) -> Any:
        if self.latency:
            await CLOCK.wait()
        return self.reply(*args)

    async def call(self, *args: Any) -> dict[int, Any]:
        return {0: await self.call_one(*args)}


class Mesh:
    """What `ActorHandle.shutdown` stops."""

    async def stop(self) -> None:
        """Nothing runs."""


def handle(name: str, latency: float, **endpoints: Callable[..., Any]) -> ActorHandle:
    actor: Any = SimpleNamespace(**{key: Endpoint(reply, latency) for key, reply in endpoints.items()})
    mesh: Any = Mesh()
    return ActorHandle(name, actor, mesh, 1, 60.0, None)


async def service(name: str, replicas: int, **endpoints: Callable[..., Any]) -> Service:
    async def start(index: int, restart: int) -> ActorHandle:
        return handle(f"{name}-{index}", LATENCY, **endpoints)

    found = Service(name, ServiceConfig(num_replicas=replicas, max_concurrent_requests=4), start)
    await found.start()
    return found


def generate(prompt_ids: list[int], params: SamplingParams) -> list[Completion]:
    return [
        Completion(
            text="a b c", token_ids=[1] * TOKENS, logprobs=[-0.5] * TOKENS, prompt_ids=prompt_ids,
            policy_versions=[VERSION[0]] * TOKENS, finish_reason="stop",
        )
        for _ in range(params.n)
    ]  # fmt: skip


def score(group_id: str, prompt: Prompt, completions: list[Completion]) -> tuple[list[Episode], bool]:
    episodes = [
        Episode(id=f"{group_id}/{i}", prompt=prompt, completion=c, reward=float(i % 2))
        for i, c in enumerate(completions)
    ]
    return episodes, False


VERSION = [0]


class Prompts:
    """An endless stream of one prompt."""

    number = 0

    def __next__(self) -> Prompt:
        self.number += 1
        return Prompt(id=str(self.number), text="What is 2 + 3?")

    def observe(self, group: Group) -> None:
        """Nothing depends on what was learnt."""

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def metrics(self) -> dict[str, float]:
        return {}


async def services_and_buffer(episodes: int, replicas: int, group: int) -> float:
    """Seconds for `episodes` through generator and reward services and the buffer, in groups of `group`."""
    generator = await service("generator", replicas, generate=generate)
    reward = await service("reward", 64, score=score)
    batch = max(1, replicas // 2)
    buffer = Buffer(groups_per_version=batch, max_policy_age=1, starve_after=10**9)
    params, tasks, stream = SamplingParams(n=group), set(), Prompts()

    async def roll(ticket: Any) -> None:
        prompt = next(stream)
        completions = await generator.generate.route([1, 2, 3], params)
        graded, _ = await reward.score.route(prompt.id, prompt, completions)
        await buffer.finish(ticket, Group(id=prompt.id, prompt=prompt, episodes=tuple(graded)))

    async def produce() -> None:
        while True:
            task = asyncio.create_task(roll(await buffer.admit()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    began, producer, version, taken = time.process_time(), asyncio.create_task(produce()), 0, 0
    while taken < episodes:
        taken += sum(len(g.episodes) for g in await buffer.take(batch))
        version += 1
        await buffer.publish(version)
    seconds = time.process_time() - began
    producer.cancel()
    await asyncio.gather(producer, *tasks, return_exceptions=True)
    return seconds


async def whole_loop(episodes: int, replicas: int, group: int, folder: Path) -> tuple[float, dict[str, int], list[Any]]:
    """The same through the real controller; seconds, the ledger's counts, and the steps' reports."""
    generator = await service("generator", replicas, generate=generate, update_weights=lambda receipt, verify: "")
    reward = await service("reward", 64, score=score)

    def publish(version: int) -> Any:
        VERSION[0] = version
        return Receipt(version=version, num_tensors=1, num_bytes=0, location={})

    VERSION[0] = 0
    trainer = handle("trainer-0", 0.0, train_step=lambda inputs, targets: 0.0, metrics=dict, publish=publish)
    batch = max(1, replicas // 2)
    training = TrainingConfig(
        batch_size=batch, max_steps=-(-episodes // (batch * group)), max_policy_age=1, micro_batch_tokens=1 << 16,
        verify_weight_sync=False,
    )  # fmt: skip
    config: Any = SimpleNamespace(
        training=training, evaluation=EvaluationConfig(), checkpoint=CheckpointConfig(), reward=RewardConfig(),
        record=RecordConfig(),
    )  # fmt: skip
    loss = SimpleNamespace(needs=())
    plan: Any = SimpleNamespace(
        sampling=SamplingParams(n=group), mask_truncated=False, loss=loss, generator=SimpleNamespace(use=Use("stub")),
        kl=SimpleNamespace(placement="loss", beta=0.0), needs_ref_logprobs=False,
    )  # fmt: skip
    sampler = SimpleNamespace(verdict=lambda group: Verdict(True))
    encode: Any = lambda prompt: [1, 2, 3]  # noqa: E731
    advantage = CallByName(lambda rewards: rewards - rewards.mean(), ("rewards",), "advantage")
    directory = RunDirectory("", "", str(folder))
    directory.begin({})
    controller = Controller(
        config=config, plan=plan, host=PluginHost.load(()), lock_text="",
        roles=Roles(trainer=trainer, generator=generator, reward=reward, ref_model=None),
        roller=Roller(
            encode=encode, generator=generator, reward=reward, sampler=sampler, sampling=plan.sampling,
            reward_timeout_s=10.0,
        ),
        stepper=Stepper(
            trainer=trainer, ref_model=None, advantage=advantage, plan=plan, training=training, data_parallel=1,
            max_policy_age=1,
        ),
        stream=Prompts(), directory=directory, trackers=Trackers({}), stop=asyncio.Event(),
        info=RunInfo(id="bench", directory=str(folder), config={}),
    )  # fmt: skip
    began = time.process_time()
    await controller.run()
    return time.process_time() - began, check_ledger(folder), controller.history


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--group", type=int, default=8, help="responses per prompt")
    parser.add_argument("--profile", action="store_true", help="where the time of the whole loop goes")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(f"{options.replicas:,} replicas, one core; peak memory before {peak_mb():.0f} MB. Rates are by CPU time.")
    for group in (1, options.group):
        CLOCK.tick = None
        seconds = asyncio.run(services_and_buffer(options.episodes, options.replicas, group))
        print(
            f"services and buffer, groups of {group}: {options.episodes / seconds:,.0f} episodes/s, "
            f"peak memory {peak_mb():.0f} MB"
        )
    with tempfile.TemporaryDirectory() as folder, cProfile.Profile() as profile:
        if not options.profile:
            profile.disable()
        for part, count in ((1, options.episodes // 4), (2, options.episodes)):
            CLOCK.tick = None
            job = whole_loop(count, options.replicas, options.group, Path(folder) / str(part))
            seconds, counts, history = asyncio.run(job)
            assert counts["trained"] >= count, counts
            host = sum(r.metrics["time/host_s"] for r in history)
            print(
                f"whole loop, groups of {options.group}: {counts['trained'] / seconds:,.0f} episodes/s over "
                f"{counts['trained']:,}, of which host_s {host / seconds:.0%}; peak memory {peak_mb():.0f} MB"
            )
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
