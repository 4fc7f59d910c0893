"""A one-file plugin with a table-model generator and trainer as real Monarch actors, and rewards that misbehave.

The rest of a run (processes, services, transport, loop, reward service, run directory) is the real thing, so the loop
and its failures are tested in seconds.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import attrs
from monarch.actor import concurrent_endpoint, endpoint

from forge_host.api import AlgorithmParts, ComponentSpec, RewardResult, SamplingParams, Use, field, hookimpl
from forge_host.runtime.actor import ForgeActor

FORGE_API = "1.0"


@attrs.frozen(kw_only=True)
class FakeConfig:
    die_at: int = field(default=0, help="this call kills the process; 0 never")
    delay_s: float = field(default=0.0, help="time of one call", unit="s")
    slow_every: int = field(default=0, help="one call in so many takes half a second more; 0 none")
    wrong_weights: bool = field(default=False, help="load something else than was published")
    no_versions: bool = field(default=False, help="forget the policy versions")
    learning_rate: float = field(default=150.0, help="of the table's gradient descent")
    flag: str = field(default="", help="file that is made on the first death, after which no more happen")
    sleep_between_steps: bool = field(default=False, help="sleep while the trainer trains")
    update_after: int = field(default=0, help="new weights wait until so many calls have begun")
    diary: str = field(default="", help="file that gets a letter at each sleep, wake and update")


class FakeActor(ForgeActor):
    def __init__(self, config, context) -> None:
        self.config, self.context, self.calls = config, context, 0

    def transport(self):
        transport = self.context.host().build("transport", self.context.transport)
        transport.open(self.context.namespace)
        return transport

    async def called(self) -> None:
        self.calls += 1
        number = self.calls
        slow = self.config.slow_every and number % self.config.slow_every == 0
        await asyncio.sleep(self.config.delay_s + (0.5 if slow else 0))
        if self.config.die_at == number and not (self.config.flag and Path(self.config.flag).exists()):
            if self.config.flag:
                Path(self.config.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Generator(FakeActor):
    @endpoint
    async def setup(self) -> None:
        from forge_host.testing.fakes import FakeGenerator

        self.model = FakeGenerator(transport=self.transport())

    @endpoint
    async def sleep(self) -> None:
        self.note("s")

    @endpoint
    async def wake(self) -> None:
        self.note("w")

    def note(self, letter: str) -> None:
        self.asleep = letter == "s"
        if self.config.diary:
            with open(self.config.diary, "a") as file:
                file.write(letter)

    @concurrent_endpoint
    async def generate(self, prompt_ids, params):
        assert not getattr(self, "asleep", False)
        version = self.model.policy_version
        await self.called()
        completions = self.model.generate(prompt_ids, params)
        versions = [] if self.config.no_versions else None
        return [
            attrs.evolve(c, policy_versions=versions if versions is not None else [version] * len(c.token_ids))
            for c in completions
        ]

    @concurrent_endpoint
    async def update_weights(self, receipt, checksum=False) -> str:
        from forge_host.loop.checksum import tensor_digest, weights_digest

        while self.calls < self.config.update_after:
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        assert not getattr(self, "asleep", False)
        self.note("u")
        self.model.update_weights(receipt)
        self.paused = getattr(self, "paused", 0.0) + time.perf_counter() - began
        if self.config.wrong_weights:
            self.model.weight += 1
        return weights_digest([("weight", tensor_digest(self.model.weight))]) if checksum else ""

    @concurrent_endpoint
    async def metrics(self):
        return {"sync/pause_s": self.paused}


class Trainer(FakeActor):
    @endpoint
    async def setup(self) -> None:
        from forge_host.testing.fakes import FakeTrainer

        self._transport = self.transport()
        loss = self.context.host().build("loss", self.context.plan.loss.use)
        self.model = FakeTrainer(loss=loss, transport=self._transport, learning_rate=self.config.learning_rate)

    @endpoint
    async def train_step(self, inputs, targets) -> float:
        await self.called()
        return self.model.train_step(inputs, targets)

    @endpoint
    async def logprobs(self, inputs, targets):
        return self.model.logprobs(inputs, targets)

    @endpoint
    async def metrics(self):
        return {"policy/loss": 0.0}

    @endpoint
    async def publish(self, version: int):
        return self._transport.publish(version, [("weight", self.model.weight.detach())], checksums=True)

    @endpoint
    async def save(self, path: str) -> None:
        import torch

        torch.save(self.model.weight, Path(path) / "weight.pt")

    @endpoint
    async def load(self, path: str) -> None:
        import torch

        self.model.weight = torch.load(Path(path) / "weight.pt", weights_only=True)

    @endpoint
    async def save_hf(self, path: str) -> None:
        import torch

        Path(path).mkdir(parents=True)
        torch.save(self.model.weight, Path(path) / "weight.pt")


def share_of_b(response: str) -> RewardResult:
    """What the table model has to learn: say b."""
    value = response.count("b") / max(len(response), 1)
    return RewardResult(value, {"b": value}, "counted")


def raises(response: str) -> float:
    raise ZeroDivisionError("in the reward")


def sometimes_raises(response: str) -> float:
    if response.startswith("c"):
        raise ZeroDivisionError("c")
    return response.count("b") / max(len(response), 1)


def hangs(response: str) -> float:
    while True:
        time.sleep(0.01)


def text(response: str) -> str:
    return "good"


def constant(response: str) -> float:
    return 1.0


@hookimpl
def forge_generators(host):
    return [ComponentSpec("fake", f"{__name__}:Generator", "table model", config=f"{__name__}:FakeConfig")]


@hookimpl
def forge_trainers(host):
    return [ComponentSpec("fake", f"{__name__}:Trainer", "table model", config=f"{__name__}:FakeConfig")]


@hookimpl
def forge_losses(host):
    return [ComponentSpec("policy-gradient", f"{__name__}:policy_gradient", "of the fakes")]


@hookimpl
def forge_advantages(host):
    return [ComponentSpec("centred", f"{__name__}:centred", "reward minus the group's mean", needs=("groups",))]


@hookimpl
def forge_algorithms(host):
    return [ComponentSpec("fake", f"{__name__}:FakeAlgorithm", "plain policy gradient")]


def policy_gradient(logprobs, generator_logprobs, advantages):
    return -(logprobs - generator_logprobs).exp() * advantages


def centred(rewards, group_ids):
    same = (group_ids[:, None] == group_ids).to(rewards)
    return rewards - same @ rewards / same.sum(1)


@attrs.frozen(kw_only=True)
class FakeAlgorithm:
    n_samples: int = field(default=8, help="responses per prompt")
    max_tokens: int = field(default=8, help="response budget", unit="tokens")

    def build(self) -> AlgorithmParts:
        sampling = SamplingParams(n=self.n_samples, max_tokens=self.max_tokens)
        return AlgorithmParts(
            loss=Use("fake-roles/policy-gradient"), advantage=Use("fake-roles/centred"), sampling=sampling
        )
