"""The GPU's attentions on a CPU: masks and plans against plain masks, and whole steps with a stand-in kernel."""

from __future__ import annotations

import functools

import pytest
import torch
from forge_plugin_titan.attention import block_plan
from forge_plugin_titan.config import TitanConfig
from forge_plugin_titan.device import prepare
from forge_plugin_titan.layout import Segment, cut
from titan_helpers import batches, make_rows, objective, save_model

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import UsageError

#: A shared prompt with two responses, a plain row, filling; blocks of 4 are whole, partial and empty.
SEGMENTS = (
    Segment(0, 9), Segment(9, 6, 0, 9), Segment(15, 3, 0, 9), Segment(18, 13), Segment(31, 2, 18, 31), Segment(33, 7)
)  # fmt: skip
LENGTH = 40


def dense(segments=SEGMENTS, length=LENGTH):
    mask = torch.zeros(length, length, dtype=torch.bool)
    for s in segments:
        for i in range(s.length):
            mask[s.start + i, s.start : s.start + i + 1] = True
            mask[s.start + i, s.prefix : s.prefix_end] = True
    return mask


def parts(number):
    """Where the part of each of `number` processes begins and ends, and its pieces of segments."""
    size = LENGTH // number
    return [(i * size, i * size + size, cut(SEGMENTS, i * size, i * size + size)) for i in range(number)]


@pytest.mark.parametrize("begin, end, segments", [*parts(1), *parts(2), *parts(5)])
@pytest.mark.parametrize("block", [4, 8, 16, 128])
def test_flex_mask_has_every_block_that_is_seen_and_no_other(block, begin, end, segments):
    from forge_plugin_titan.flex import flex_mask

    mask, expected = flex_mask(segments, "cpu", LENGTH, block), dense()[begin:end]
    at, queries = torch.arange(LENGTH), end - begin
    assert mask.seq_lengths == expected.shape
    assert torch.equal(mask.mask_mod(None, None, at[:queries, None], at[None]), expected)
    above, blocks = -(-queries // block), -(-LENGTH // block)
    padded = torch.zeros(above * block, blocks * block, dtype=torch.bool)
    padded[:queries, :LENGTH] = expected
    tiles = padded.view(above, block, blocks, block).transpose(1, 2).flatten(2)

    def chosen(number, columns):
        out = torch.zeros(above, blocks, dtype=torch.bool)
        for row, (n, order) in enumerate(zip(number[0, 0].tolist(), columns[0, 0].tolist(), strict=True)):
            out[row, order[:n]] = True
        return out

    assert torch.equal(chosen(mask.full_kv_num_blocks, mask.full_kv_indices), tiles.all(-1))
    assert torch.equal(chosen(mask.kv_num_blocks, mask.kv_indices), tiles.any(-1) & ~tiles.all(-1))


def stand_in(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """What flash attention computes for (-1, 0): causal, aligned to the last key of each segment."""
    if not torch.compiler.is_compiling():
        assert window_size == (-1, 0) and int((cu_q[1:] - cu_q[:-1]).max()) <= max_q and int(cu_k[-1]) == len(k)
        assert int((cu_k[1:] - cu_k[:-1]).max()) <= max_k
    at_q, at_k = torch.arange(len(q)), torch.arange(len(k))
    of_q = torch.searchsorted(cu_q.long(), at_q, right=True) - 1
    of_k = torch.searchsorted(cu_k.long(), at_k, right=True) - 1
    offset = (cu_k[1:] - cu_k[:-1]) - (cu_q[1:] - cu_q[:-1])
    last = at_q - cu_q[of_q] + offset[of_q]
    mask = (of_q[:, None] == of_k[None]) & ((at_k - cu_k[of_k])[None] <= last[:, None])
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa)
    return out[0].transpose(0, 1)


def test_varlen_and_blocks_attend_alike_whole_and_in_parts(monkeypatch):
    from forge_plugin_titan import varlen
    from forge_plugin_titan.attention import BlockAttention

    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, LENGTH, n, 8, requires_grad=True) for n in (4, 2, 2))
    found = []
    for inner, plan in (
        (BlockAttention, lambda segments: block_plan(segments, "cpu")),
        (varlen.SegmentVarlen, lambda segments: varlen.varlen_plan(segments, "cpu", LENGTH)),
    ):
        attend = inner.Config().build()
        for number in (1, 2, 5, 8):
            out = torch.cat(
                [attend(q[:, a:b], k, v, attention_masks=plan(s), enable_gqa=True) for a, b, s in parts(number)], dim=1
            )
            found.append((out, *torch.autograd.grad((out * out).sum(), (q, k, v))))
    for other in found[1:]:
        for left, right in zip(found[0], other, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_step_with_varlen_is_the_step_with_blocks(tmp_path, monkeypatch, compiled):
    """Compiled means traced whole, forward and backward, also when lengths change; kernels are torch's own."""
    import torchtitan.config
    from forge_plugin_titan import engine, kernels, varlen
    from forge_plugin_titan.rehearsal import rehearse

    prepare("cpu", num_threads=1)
    save_model(str(tmp_path), "qwen3")
    training = TrainingConfig(dtype="float32", seq_len=64, learning_rate=1e-3)
    plain = engine.TitanEngine(TitanConfig(), str(tmp_path), training, ParallelismConfig(), objective())
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    monkeypatch.setattr(engine, "choose", lambda *_, **__: kernels.Choice("varlen", compiled))
    traced = functools.partial(torchtitan.config.CompileConfig, backend="aot_eager")
    monkeypatch.setattr(torchtitan.config, "CompileConfig", traced)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    other = engine.TitanEngine(TitanConfig(), str(tmp_path), training, ParallelismConfig(), objective())
    rehearse(other)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (2 if compiled else 0)
    for seed, groups in ((0, 3), (1, 6), (2, 14), (3, 2), (4, 9), (5, 20), (6, 33)):
        step = batches([make_rows(seed=seed, groups=groups, per_group=5 if groups % 2 else 1)])
        assert other.train_step(*step) == pytest.approx(plain.train_step(*step), abs=1e-5)
        norms = [e.metrics()["policy/grad_norm"] for e in (other, plain)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    # One for the first lengths and one for all others, both made by the rehearsal.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (2 if compiled else 0)


@pytest.mark.parametrize(
    ("config", "training", "device", "message"),
    [
        ({"attention": "varlen"}, {}, "cpu", "flash attention needs a GPU"),
        ({"attention": "varlen"}, {"dtype": "float32"}, "cuda", "does not compute in float32"),
        ({"attention": "sdpa"}, {"compile": True}, "cuda", "needs flex or varlen attention"),
        ({}, {"compile": True}, "cpu", "needs flex or varlen attention"),
    ],
)
def test_attention_that_cannot_run_is_refused(config, training, device, message):
    from forge_plugin_titan.kernels import choose

    with pytest.raises(UsageError, match=message):
        choose(TitanConfig(**config), TrainingConfig(**training), torch.device(device))


def test_what_a_user_gets_who_sets_nothing():
    from forge_plugin_titan.kernels import Choice, choose

    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose(TitanConfig(), TrainingConfig(), cpu) == Choice("sdpa", False)
    assert choose(TitanConfig(), TrainingConfig(), cuda) == Choice("varlen", True)
    assert choose(TitanConfig(), TrainingConfig(), cuda, trains=False) == Choice("varlen", False)
    assert choose(TitanConfig(), TrainingConfig(dtype="float32"), cuda) == Choice("flex", True)
    assert choose(TitanConfig(attention="sdpa"), TrainingConfig(), cuda) == Choice("sdpa", False)
