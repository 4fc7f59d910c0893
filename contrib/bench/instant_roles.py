"""A generator that answers after `delay_s` with prepared tokens and a trainer that does nothing: what is left of a step
is the host's own, with real processes, rewards, packing and record.

    python contrib/bench/host_share.py --data gsm8k/train.jsonl      # writes the configuration, runs `bench loop`
"""

import asyncio
import random

import attrs
import torch
from monarch.actor import concurrent_endpoint, endpoint

from forge_host.api import ComponentSpec, field, hookimpl
from forge_host.runtime.actor import ForgeActor
from forge_host.types import Completion

FORGE_API = "1.0"
PREPARED = 512  #: responses


@attrs.frozen(kw_only=True)
class Settings:
    delay_s: float = field(default=0.3, help="time of one answer", unit="s")


class Generator(ForgeActor):
    def __init__(self, config, context) -> None:
        self.config, self.context, self.version, self.given = config, context, 0, 0

    @endpoint
    async def setup(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self.context.model_path)
        draw, length = random.Random(0), self.context.plan.sampling.max_tokens
        self.ids = [tuple(draw.randrange(1000, 40000) for _ in range(length)) for _ in range(PREPARED)]
        self.logprobs = [tuple(-8 * draw.random() for _ in range(length)) for _ in range(PREPARED)]

    @concurrent_endpoint
    async def generate(self, prompt_ids, params):
        await asyncio.sleep(self.config.delay_s)
        return [self.one(prompt_ids) for _ in range(params.n)]

    def one(self, prompt_ids):
        self.given = (self.given + 1) % PREPARED
        ids = self.ids[self.given]
        return Completion(
            text=self.tokenizer.decode(ids), token_ids=ids, logprobs=self.logprobs[self.given],
            prompt_ids=tuple(prompt_ids), policy_versions=(self.version,) * len(ids), finish_reason="length",
        )  # fmt: skip

    @concurrent_endpoint
    async def update_weights(self, receipt, checksum=False) -> str:
        self.version = receipt.version
        return ""

    @concurrent_endpoint
    async def metrics(self):
        return {}


class Trainer(ForgeActor):
    def __init__(self, config, context) -> None:
        self.context = context

    @endpoint
    async def setup(self) -> None:
        self.transport = self.context.host().build("transport", self.context.transport)
        self.transport.open(self.context.namespace)

    @endpoint
    async def train_step(self, inputs, targets) -> float:
        return 0.0

    @endpoint
    async def metrics(self):
        return {}

    @endpoint
    async def publish(self, version: int):
        return self.transport.publish(version, [("weight", torch.zeros(10))])


@hookimpl
def forge_generators(host):
    return [ComponentSpec("instant", f"{__name__}:Generator", "prepared tokens", config=f"{__name__}:Settings")]


@hookimpl
def forge_trainers(host):
    return [ComponentSpec("instant", f"{__name__}:Trainer", "does nothing", config=f"{__name__}:Settings")]
