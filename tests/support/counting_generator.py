"""A generator that takes a fixed time for a token, for `forge-host bench generate`; `load` is it alone."""

import asyncio
import time

from monarch.actor import concurrent_endpoint, endpoint

from forge_host.api import Completion
from forge_host.runtime.actor import ForgeActor

TOKEN_S = 0.002


class Counting(ForgeActor):
    alone = "counting_generator:load"

    def __init__(self, config=None, context=None) -> None:
        self.context = context

    @staticmethod
    def environment(config, context) -> dict[str, str]:
        return {"COUNTING": context.role}

    @endpoint
    async def setup(self) -> None:
        pass

    @concurrent_endpoint
    async def generate(self, prompt_ids, params):
        assert params.ignore_eos
        await asyncio.sleep(TOKEN_S * params.max_tokens)
        tokens = [1] * params.max_tokens
        return [Completion(text="", token_ids=tokens, logprobs=[0.0] * len(tokens)) for _ in range(params.n)]


class Stingy(Counting):
    @concurrent_endpoint
    async def generate(self, prompt_ids, params):
        return [Completion(text="", token_ids=[1], logprobs=[0.0])]


class Broken(Counting):
    alone = "counting_generator:fail"




def load(config, context):
    import os

    assert os.environ["COUNTING"] == "generator"

    def work(prompts, params) -> int:
        time.sleep(TOKEN_S * params.max_tokens)
        return len(prompts) * params.n * params.max_tokens

    return work


def fail(config, context):
    raise ValueError("no such model")
