"""Packing at GSM8K's lengths: hardly any filling, ranks equally loaded, shared prompts computed once."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from forge_plugin_titan.layout import build_layout

from forge_host.loop.batch import Row, make_batches, num_bins
from forge_host.types import Completion

GSM8K = Path(os.environ.get("FORGE_HOST_GSM8K") or Path(__file__).parents[4] / "shared" / "data" / "gsm8k")
GROUPS, SAMPLES = 64, 8


def rows_of(prompts, answers):
    rng = random.Random(0)
    out = []
    for group in range(GROUPS):
        for _ in range(SAMPLES):
            length = rng.choice(answers)
            completion = Completion(
                text="", prompt_ids=[group, *range(2, prompts[group] + 1)], token_ids=[7] * length,
                logprobs=[-1.0] * length,
            )  # fmt: skip
            out.append(Row(completion, group, 0.0))
    return out


def like_gsm8k():
    """Lengths drawn like those of its questions and answers in tokens (means about 60 and 110)."""
    rng = random.Random(1)
    return (
        [min(250, max(15, int(rng.lognormvariate(4.0, 0.4)))) for _ in range(GROUPS)],
        [min(400, max(20, int(rng.lognormvariate(4.6, 0.45)))) for _ in range(500)],
    )


def real_gsm8k():
    smollm2 = pytest.importorskip("forge_plugin_smollm2.model", reason="needs contrib/forge-plugin-smollm2")
    if not (GSM8K / "train.jsonl").is_file():
        pytest.skip("GSM8K is not there: set FORGE_HOST_GSM8K")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.SmolLM2().local_path())
    lines = [json.loads(line) for line in (GSM8K / "train.jsonl").read_text().splitlines()[:500]]
    questions, answers = ([len(tokenizer.encode(e[key])) for e in lines] for key in ("question", "answer"))
    return questions, answers


@pytest.mark.parametrize("lengths", [like_gsm8k, pytest.param(real_gsm8k, marks=pytest.mark.slow)])
@pytest.mark.parametrize("share_prompts", [True, False])
@pytest.mark.parametrize(("ranks", "budget"), [(1, 4096), (2, 16384), (4, 8192), (8, 4096)])
def test_useful_share_and_balance(lengths, ranks, budget, share_prompts):
    rows = rows_of(*lengths())
    bins = num_bins(rows, data_parallel=ranks, accumulation=1, micro_batch_tokens=budget)
    inputs, targets = make_batches(rows, bins)
    layouts = [
        build_layout(i, t, share_prompts=share_prompts, multiple=128) for i, t in zip(inputs, targets, strict=True)
    ]
    useful, filled = sum(x.num_tokens for x in layouts), sum(x.tokens.shape[1] for x in layouts)
    assert useful / filled >= 0.95
    loads = [sum(x.tokens.shape[1] for x in layouts[rank::ranks]) for rank in range(ranks)]
    # Rows are levelled by their own tokens; how many of their prompts are shared differs a little.
    assert max(loads) <= (1.08 if share_prompts else 1.05) * sum(loads) / ranks, loads
    assert max(x.row_tokens for x in layouts) <= 1.02 * budget
    if share_prompts:
        prompts = sum(len(r.completion.prompt_ids) for r in rows)
        assert useful < sum(r.num_tokens for r in rows) - 0.7 * prompts  # of eight copies, seven at best are saved
