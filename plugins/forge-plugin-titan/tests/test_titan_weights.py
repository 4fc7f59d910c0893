"""How weights are handed on: the fast ways give what the plain ones give."""

from __future__ import annotations

import pytest
import torch
from forge_plugin_titan.rows import plan_rows, steps_of
from forge_plugin_titan.weights import cast, hf_tensors
from titan_helpers import objective, save_model

from forge_host.config.schema import ParallelismConfig, TrainingConfig


def test_cast_is_what_to_gives():
    given = {"a": torch.rand(3, 4).t(), "b": torch.rand(5, dtype=torch.float64), "c": torch.rand(2).bfloat16()}
    for dtype in (torch.bfloat16, torch.float32):
        found = cast(given, dtype)
        assert list(found) == list(given)
        assert all(torch.equal(found[n], t.to(dtype)) and found[n].dtype == dtype for n, t in given.items())


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([0, 1, 2, 3], (0, (4,), (1,))),
        ([5], (5, (1,), (1,))),
        ([0, 2, 4, 1, 3, 5], (0, (2, 3), (1, 2))),
        ([8, 9, 0, 1], None),  # no step is negative
        ([0, 1, 4, 5, 12, 13, 16, 17], (0, (2, 2, 2), (12, 4, 1))),
        ([3, 3, 3], (3, (3,), (0,))),
        ([0, 1, 2, 4], None),
        ([0, 1, 3, 5], None),
        ([], None),
    ],
)
def test_rows_as_nested_loops(rows, expected):
    assert steps_of(rows) == expected


def engine(folder, *, fuse_qkv, **settings):
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.engine import TitanEngine

    training = TrainingConfig(dtype="float32", seq_len=64)
    config = TitanConfig(fuse_qkv=fuse_qkv, **settings)
    return TitanEngine(config, str(folder), training, ParallelismConfig(), objective())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("fuse_qkv", [True, False])
@pytest.mark.parametrize("publish_dtype", ["float32", "bfloat16"])
def test_rows_of_parameters_are_the_published_tensors(tmp_path, family, tied, fuse_qkv, publish_dtype):
    save_model(str(tmp_path), family, tied=tied)
    trainer = engine(tmp_path, fuse_qkv=fuse_qkv, publish_dtype=publish_dtype)
    plan = plan_rows(trainer.model, trainer.spec)
    assert plan is not None
    for change in (0.0, 0.5):  # the plan follows the parameters
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter += change
        expected = list(hf_tensors(trainer.model, trainer.spec, trainer.publish_dtype))
        for found in (list(plan.tensors(trainer.publish_dtype)), list(trainer.named_tensors())):
            assert [name for name, _ in found] == [name for name, _ in expected]
            for (name, tensor), (_, other) in zip(found, expected, strict=True):
                assert tensor.dtype == other.dtype and tensor.is_contiguous() and torch.equal(tensor, other), name


def test_what_is_only_renamed_is_not_copied(tmp_path):
    save_model(str(tmp_path), "llama", tied=True)
    trainer = engine(tmp_path, fuse_qkv=True)
    held = {parameter.data_ptr() for parameter in trainer.model.parameters()}
    copied = {name.rpartition("layers.")[2][2:] for name, t in trainer.named_tensors() if t.data_ptr() not in held}
    assert copied == {f"self_attn.{part}_proj.weight" for part in "qkv"}


def test_adapters_take_the_plain_way(tmp_path):
    save_model(str(tmp_path), "llama", tied=True)
    trainer = engine(tmp_path, fuse_qkv=False, lora_rank=2)
    assert plan_rows(trainer.model, trainer.spec) is None
    names = [name for name, _ in trainer.named_tensors()]
    assert names == [name for name, _ in hf_tensors(trainer.model, trainer.spec, torch.float32)]


class Adapter:
    """Does to a tensor what no choice of rows is."""

    def __init__(self, config, path):
        pass

    def to_hf(self, tensors):
        return {name: self.change(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t + 1,
        lambda t: t.flip(-1) if t.dim() == 2 else t,
        lambda t: t.t() if t.dim() == 2 else t,
        lambda t: t[:, :1] if t.dim() == 2 else t,
        lambda t: t[None],
        lambda t: t[torch.randperm(len(t), generator=torch.Generator().manual_seed(0))],
    ],
)
def test_other_changes_take_the_plain_way(tmp_path, change):
    import attrs

    save_model(str(tmp_path), "llama", tied=False)
    trainer = engine(tmp_path, fuse_qkv=False)
    changed = type("Changed", (Adapter,), {"change": staticmethod(change)})
    assert plan_rows(trainer.model, attrs.evolve(trainer.spec, adapter=changed)) is None
    rows = type("Same", (Adapter,), {"change": staticmethod(lambda t: t)})
    assert plan_rows(trainer.model, attrs.evolve(trainer.spec, adapter=rows)) is not None
