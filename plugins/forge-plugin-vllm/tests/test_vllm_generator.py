"""The generator in its own Monarch process, against transformers with the same weights."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio
import torch
from forge_plugin_vllm.actor import VLLMGenerator
from forge_plugin_vllm.config import VLLMConfig
from monarch.actor import concurrent_endpoint

from forge_host.builtin.transports.shm import SharedMemory
from forge_host.config.schema import RunConfig, ServiceConfig, TrainingConfig
from forge_host.errors import RunError, UsageError
from forge_host.loop.checksum import weights_digest
from forge_host.runtime.context import RoleContext
from forge_host.runtime.session import Session
from forge_host.types import SamplingParams, Use

spec = importlib.util.spec_from_file_location("tiny_llama", Path(__file__).with_name("tiny_llama.py"))
assert spec is not None and spec.loader is not None
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux"),
]

PROMPT = [0, *range(10, 90)]  # longer than a block of the prefix cache
TOLERANCE = 2e-3  # nats; float32, other kernels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.write_tiny_llama(tmp_path_factory.mktemp("llama")))


def context(folder: str, run_dir: Path) -> RoleContext:
    return RoleContext(
        role="generator", model_path=folder, config=RunConfig(model=folder, training=TrainingConfig(seq_len=256)),
        plan=None, transport=Use("builtin/shm"), namespace="test", run_dir=str(run_dir),
    )  # fmt: skip


class Cancelling(VLLMGenerator):
    @concurrent_endpoint
    async def cancel(self, prompts: list[list[int]], params: list[SamplingParams], after_s: float) -> dict[str, float]:
        """Ask, and give up after a while: what the engine says then."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.engine.generate_many(prompts, params), after_s)
        return dict(self.engine.metrics())


async def start(session: Session, config: VLLMConfig, context: RoleContext) -> Any:
    environment = VLLMGenerator.environment(config, context)
    return await session.start_actor(
        Cancelling, ServiceConfig(), (config, context), {}, role="generator", environment=environment
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generator(folder: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """One generator for all tests; recomputing, so that every token's log-probability says which weights made it."""
    run_dir = tmp_path_factory.mktemp("run")
    config = VLLMConfig(dtype="float32", kv_cache_gb=0.25, recompute_in_flight=True)
    async with Session(log_dir=str(run_dir)) as session:
        handle = await start(session, config, context(folder, run_dir))
        yield handle
        await handle.release.call()


@pytest.fixture(scope="module")
def trainer(folder: str) -> Iterator[Trainer]:
    with closing(Trainer(folder)) as made:
        yield made


class Trainer:
    """Publishes weights; `held` maps each version to its tensors."""

    def __init__(self, folder: str) -> None:
        self.transport = SharedMemory()
        self.transport.open("test")
        self.held = {0: tiny.read_weights(folder)}

    def publish(self, weights: dict[str, torch.Tensor]) -> Any:
        version = max(self.held) + 1
        self.held[version] = weights
        return self.transport.publish(version, weights.items(), checksums=True)

    def close(self) -> None:
        self.transport.close()


def error_of(trainer: Trainer, folder: str, completion: Any, temperature: float = 1.0) -> float:
    """Largest difference in nats from transformers, each token under the weights that it says it was sampled with."""
    under = {
        version: tiny.logprobs(folder, trainer.held[version], completion.prompt_ids, completion.token_ids, temperature)
        for version in set(completion.policy_versions)
    }
    expected = torch.stack([under[version][i] for i, version in enumerate(completion.policy_versions)])
    return float((torch.tensor(completion.logprobs) - expected).abs().max())


async def test_samples_with_their_logprobs(generator: Any, trainer: Trainer, folder: str) -> None:
    params = SamplingParams(n=3, max_tokens=20, temperature=0.7)
    completions = await generator.generate.call_one(PROMPT, params)
    assert len(completions) == 3
    assert len({c.token_ids for c in completions}) == 3, "three draws"
    for completion in completions:
        assert list(completion.prompt_ids) == PROMPT
        assert len(completion.token_ids) == 20 or completion.token_ids[-1] == tiny.END
        assert completion.finish_reason == ("length" if completion.token_ids[-1] != tiny.END else "stop")
        assert error_of(trainer, folder, completion, 0.7) < TOLERANCE
        words = [f"w{i}" for i in completion.token_ids if i != tiny.END]
        assert completion.text.split() == words


async def test_seed_repeats_the_draw(generator: Any) -> None:
    params = SamplingParams(n=2, max_tokens=12, seed=5)
    first, again = [await generator.generate.call_one(PROMPT, params) for _ in range(2)]
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert first[0].token_ids != first[1].token_ids


async def test_stop_strings_end_each_response_by_itself(generator: Any, trainer: Trainer, folder: str) -> None:
    """Beside responses without any: the same draws as without the stop string, up to it."""
    whole = SamplingParams(n=3, max_tokens=40, seed=11)
    free = await generator.generate.call_one(PROMPT, whole)
    stop = free[1].text.split()[4]
    stopped, beside = await asyncio.gather(
        generator.generate.call_one(PROMPT, attrs.evolve(whole, stop=(stop,))),
        generator.generate.call_one(PROMPT[:5], whole),
    )
    assert [len(c.logprobs) == len(c.token_ids) == len(c.policy_versions) for c in stopped + beside] == [True] * 6
    for completion, before in zip(stopped, free, strict=True):
        assert before.token_ids[: len(completion.token_ids)] == completion.token_ids
        assert stop not in completion.text.split() and completion.finish_reason in ("stop", "length")
        assert error_of(trainer, folder, completion) < TOLERANCE
    assert stopped[1].finish_reason == "stop" and f"w{stopped[1].token_ids[-1]}" == stop
    assert stopped[1].text.split() == free[1].text.split()[: len(stopped[1].token_ids) - 1]


async def test_cancelled_requests_leave_nothing_behind(generator: Any, trainer: Trainer, folder: str) -> None:
    before = await generator.metrics.call_one()
    long = SamplingParams(n=4, max_tokens=160, ignore_eos=True)
    kept = asyncio.ensure_future(generator.generate.call_one(PROMPT, long))
    given = [PROMPT[:20], PROMPT[:30]], [long, attrs.evolve(long, stop=("nothing says this",))]
    await generator.cancel.call_one(*given, 0.2)
    for completion in await kept:
        assert len(completion.token_ids) == 160 and error_of(trainer, folder, completion) < TOLERANCE
    after = await generator.metrics.call_one()
    assert after["requests/running"] == 0
    assert after["requests/finished"] - before["requests/finished"] == 1, "what was cancelled had not ended"


async def test_new_weights_take_effect_whole(generator: Any, trainer: Trainer, folder: str) -> None:
    """All of them, the tied output embedding too, and none from a cached prompt; then the old ones again."""
    greedy = SamplingParams(n=1, max_tokens=16, temperature=0)
    (before,) = await generator.generate.call_one(PROMPT, greedy)
    for only in ("embed_tokens", "layers.1", ""):
        receipt = trainer.publish(tiny.changed(trainer.held[0], seed=1, only=only))
        digest = await generator.update_weights.call_one(receipt, True)
        assert digest == weights_digest(receipt.checksums.items())
        (after,) = await generator.generate.call_one(PROMPT, greedy)
        assert set(after.policy_versions) == {receipt.version}
        assert error_of(trainer, folder, after) < TOLERANCE, only
        assert after.token_ids != before.token_ids
    assert await generator.update_weights.call_one(trainer.publish(trainer.held[0])) == ""
    (back,) = await generator.generate.call_one(PROMPT, greedy)
    assert back.token_ids == before.token_ids
    assert (await generator.metrics.call_one())["sync/in_place"] == 1, "from the second update on without a reload"


async def test_every_token_has_its_own_version(generator: Any, trainer: Trainer, folder: str) -> None:
    """Updates in the middle of responses: each token's log-probability is that of the weights it names."""
    prompts = [PROMPT[:4] + [100 + i] for i in range(4)]
    params = SamplingParams(n=2, max_tokens=150)
    running = [asyncio.ensure_future(generator.generate.call_one(prompt, params)) for prompt in prompts]
    for seed in range(3):
        await asyncio.sleep(0.15)
        await generator.update_weights.call_one(trainer.publish(tiny.changed(trainer.held[0], seed=seed)))
    completions = [completion for group in await asyncio.gather(*running) for completion in group]
    assert max(len(set(c.policy_versions)) for c in completions) >= 2, "no update met a response"
    for completion in completions:
        assert list(completion.policy_versions) == sorted(completion.policy_versions)
        assert error_of(trainer, folder, completion) < TOLERANCE


async def test_weights_that_do_not_fit_change_nothing(generator: Any, trainer: Trainer, folder: str) -> None:
    good = trainer.held[max(trainer.held)]
    name = "model.layers.0.self_attn.q_proj.weight"
    missing = {n: t for n, t in good.items() if n != name}
    for weights, message in (
        (missing, f"tensor {name} is missing"),
        ({**good, "model.more.weight": torch.zeros(2)}, "tensor model.more.weight is unknown"),
        ({**good, name: good[name][:, 1:]}, f"tensor {name} has shape .128, 127. instead of .128, 128."),
    ):
        receipt = trainer.publish(weights)
        with pytest.raises(RunError, match=message):
            await generator.update_weights.call_one(receipt)
        del trainer.held[receipt.version]
        trainer.held[receipt.version] = good  # a version's number is used up
        (completion,) = await generator.generate.call_one(PROMPT, SamplingParams(n=1, max_tokens=4))
        assert set(completion.policy_versions) < set(trainer.held) and receipt.version not in completion.policy_versions
        assert error_of(trainer, folder, completion) < TOLERANCE


async def test_versions_increase(generator: Any, trainer: Trainer) -> None:
    receipt = trainer.publish(trainer.held[0])
    await generator.update_weights.call_one(receipt)
    with pytest.raises(RunError, match=f"version {receipt.version} of the weights came after {receipt.version}"):
        await generator.update_weights.call_one(receipt)


async def test_prompts_that_cannot_be_answered(generator: Any) -> None:
    with pytest.raises(UsageError, match="200 tokens and a response of 57 exceed the 256 tokens"):
        await generator.generate.call_one([5] * 200, SamplingParams(n=1, max_tokens=57))
    with pytest.raises(UsageError, match="without tokens"):
        await generator.generate.call_one([], SamplingParams(n=1, max_tokens=5))


async def test_metrics(generator: Any, trainer: Trainer) -> None:
    before = await generator.metrics.call_one()
    completions = await generator.generate.call_one(PROMPT, SamplingParams(n=4, max_tokens=10))
    after = await generator.metrics.call_one()
    made = sum(len(c.token_ids) for c in completions)
    assert after["tokens/generated"] - before["tokens/generated"] == made
    assert after["requests/finished"] - before["requests/finished"] == 1
    assert after["sync/pause_s"] > 0 and after["time/startup_s"] > 0 and after["requests/running"] == 0


async def test_nothing_outlives_a_killed_generator(folder: str, tmp_path: Path) -> None:
    config = VLLMConfig(dtype="float32", kv_cache_gb=0.25)
    async with Session(log_dir=str(tmp_path)) as session:
        handle = await start(session, config, context(folder, tmp_path))
        (pid,) = handle.pids
        family = [pid, *descendants(pid)]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(map(alive, family)) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not [p for p in family if alive(p)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            VLLMConfig(kv_cache_gb=100_000),
            r"generator\.kv_cache_gb: not enough memory for the KV cache: 100000\.00 GiB",
        ),
        (VLLMConfig(kv_cache_gb=0.0001, dtype="float32"), "not enough memory for the KV cache"),
    ],
)
async def test_no_memory_for_the_kv_cache(folder: str, tmp_path: Path, config: VLLMConfig, message: str) -> None:
    async with Session(log_dir=str(tmp_path)) as session:
        with pytest.raises(UsageError, match=message):
            await start(session, config, context(folder, tmp_path))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid: int) -> list[int]:
    """Child processes, their children and so on."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found
