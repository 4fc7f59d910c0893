"""With LoRA no process holds a reference model: the trainer answers for it, without its adapters."""

from __future__ import annotations

import asyncio
import types

import pytest
import torch

from forge_host.config import resolve
from forge_host.loop.batch import Row
from forge_host.loop.step import Stepper
from forge_host.plugins import PluginHost
from forge_host.types import Completion


@pytest.fixture(scope="module")
def host():
    return PluginHost.load(("grpo", "titan", "vllm", "math"), strict=True)


def plan_of(host, tmp_path, *overrides):
    config = tmp_path / "c.yaml"
    config.write_text("model: some/where\nrewards: [math]\ngrpo: {beta: 0.1, n_samples: 4}\n")
    return resolve(str(config), overrides=overrides, host=host)


def test_lora_needs_no_reference_process(host, tmp_path):
    assert "ref_model" in plan_of(host, tmp_path).plan.roles
    run = plan_of(host, tmp_path, "trainer.lora_rank=8", "services.ref_model.with_gpus=false")
    assert run.plan.needs_ref_logprobs and "ref_model" not in run.plan.roles
    assert any("the trainer without its adapters is it" in str(f) for f in run.findings)


def test_a_step_asks_the_trainer_for_the_reference(host, tmp_path):
    plan = plan_of(host, tmp_path, "trainer.lora_rank=8").plan
    seen = []

    class Endpoint:
        def __init__(self, answer):
            self.answer = answer

        async def call_one(self, inputs, targets):
            return self.answer(inputs, targets)

        async def call(self, inputs, targets):
            return [self.answer(inputs, targets)]

    def reference(_inputs, targets):
        return [torch.full(t["response"].shape, -7.0) for t in targets]

    def train(_inputs, targets):
        seen.extend(t["ref_logprobs"] for t in targets)
        return 0.5

    class Metrics:
        async def call_one(self):
            return {}

    trainer = types.SimpleNamespace(
        reference_logprobs=Endpoint(reference), train_step=Endpoint(train), metrics=Metrics()
    )
    training = types.SimpleNamespace(gradient_accumulation_steps=1, micro_batch_tokens=1000)
    stepper = Stepper(
        trainer=trainer, ref_model=None, advantage=_advantage(), plan=plan, training=training, data_parallel=1,
        max_policy_age=0,
    )  # fmt: skip
    reply = Completion(text="", prompt_ids=[1], token_ids=[2, 3], logprobs=[-1.0, -1.0])
    rows = [Row(reply, 0, reward) for reward in (0.0, 1.0)]
    metrics = asyncio.run(stepper.train(rows))
    assert metrics["time/ref_s"] >= 0 and metrics["train/loss"] == 0.5
    assert all((ref == -7.0).all() for ref in seen) and seen


def _advantage():
    from forge_host.api import ADVANTAGE_ARGUMENTS
    from forge_host.plugins.calling import CallByName

    return CallByName(lambda rewards: rewards - rewards.mean(), ADVANTAGE_ARGUMENTS, "advantage")
