"""A real model on CPU: the same log-probabilities as transformers, and three steps that learn."""

from __future__ import annotations

import random

import pytest
import torch
from titan_helpers import batches, make_row, objective

from forge_host.config.schema import ParallelismConfig, TrainingConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder():
    smollm2 = pytest.importorskip("forge_plugin_smollm2.model", reason="needs contrib/forge-plugin-smollm2")
    return smollm2.SmolLM2().local_path()


def engine(folder, dtype, trains=True):
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.device import prepare

    prepare("cpu")
    from forge_plugin_titan.engine import TitanEngine

    training = TrainingConfig(dtype=dtype, seq_len=128, learning_rate=4e-5)
    return TitanEngine(TitanConfig(), folder, training, ParallelismConfig(), objective() if trains else None)


def additions(folder, samples):
    """Prompts of the quickstart's kind, each with right (+1) and wrong (-1) replies."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng, rows = random.Random(0), []
    for _ in range(4):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        prompt = tokenizer.encode(f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n")
        for i in range(samples):
            right = i % 2 == 0
            reply = tokenizer.encode(f"{a + b if right else a + b + rng.randint(1, 5)}<|im_end|>")
            rows.append({"prompt": prompt, "response": reply, "advantage": 1.0 if right else -1.0})
    return rows


def test_float32_logprobs_are_those_of_transformers(folder):
    import transformers

    rng = random.Random(0)
    prompt = [rng.randrange(49152) for _ in range(30)]
    rows = [make_row(rng, prompt, 60), make_row(rng, prompt, 20)]
    for row in rows:
        row["response"] = [rng.randrange(49152) for _ in row["response"]]
    inputs, targets = batches([rows])
    found = engine(folder, "float32", trains=False).logprobs(inputs, targets)[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for row, logprobs in zip(rows, found, strict=True):
        ids = torch.tensor([row["prompt"] + row["response"]])
        with torch.no_grad():
            expected = model(ids).logits[0].log_softmax(-1)[29:-1].gather(-1, ids[0, 30:, None])[:, 0]
        torch.testing.assert_close(logprobs[: len(expected)], expected, rtol=0, atol=2e-4)


def test_three_steps_raise_what_was_rewarded(folder):
    trainer = engine(folder, "bfloat16")
    rows = additions(folder, samples=4)
    inputs, targets = batches([rows])
    before = trainer.logprobs(inputs, targets)[0].sum(1)
    for _ in range(3):
        trainer.train_step(inputs, targets)
    gain = trainer.logprobs(inputs, targets)[0].sum(1) - before
    assert gain[0::2].mean() > 0.3, gain
    assert gain[1::2].mean() < gain[0::2].mean() - 0.5, gain
    assert trainer.metrics()["tokens/useful_share"] == 1.0
    assert trainer.metrics()["tokens/shared_share"] > 0.5
