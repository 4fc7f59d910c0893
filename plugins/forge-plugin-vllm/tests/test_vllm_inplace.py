"""Weights straight into a model's parameters, on vLLM's own models as they are on a GPU (not packed)."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forge_plugin_vllm.inplace import record
from torch import nn


class Fused(nn.Module):
    """A model in vLLM's style: two checkpoint tensors in one parameter, padding rows, a loader of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Parameter(torch.full((6, 3), 9.0))
        self.table = nn.Parameter(torch.full((4, 2), 9.0))

    def load_weights(self, weights) -> None:
        for name, tensor in weights:
            if name == "table":
                self.table[:3].data.copy_(tensor)
                self.table[3:].data.fill_(0)
            elif name in ("q", "k"):
                begin, size = (0, 4) if name == "q" else (4, 2)
                self.qk.data.narrow(0, begin, size).copy_(tensor)
            elif name == "scaled":
                self.qk.data.narrow(0, 4, 2).copy_(tensor * 2)


GIVEN = {"q": torch.arange(12.0).view(4, 3), "k": -torch.arange(6.0).view(2, 3), "table": torch.ones(3, 2)}


def shapes(**more):
    return {name: tuple(tensor.shape) for name, tensor in {**GIVEN, **more}.items() if tensor is not None}


def test_recording_changes_nothing_and_writing_everything():
    model = Fused()
    plan = record(model, shapes())
    assert plan.problem() is None and (model.qk == 9).all() and (model.table == 9).all()
    where = model.qk.data_ptr()
    model.table.data[3] = 0  # the padding, as at the first load
    plan.write({**GIVEN, "q": GIVEN["q"].t().contiguous().t().double()})  # any strides, any dtype
    assert torch.equal(model.qk, torch.cat([GIVEN["q"], GIVEN["k"]])) and model.qk.data_ptr() == where
    assert model.table.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert plan.differs(GIVEN) is None


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"k": None}, "parameter qk is not written exactly once"),
        ({"extra": torch.ones(2)}, "does not use tensor extra"),
        ({"k": None, "scaled": torch.ones(2, 3)}, "computes with tensor scaled"),
        ({"scaled": torch.ones(2, 3)}, "computes with tensor scaled"),
    ],
)
def test_plans_that_would_not_write_everything(more, problem):
    assert problem in (record(Fused(), shapes(**more)).problem() or "")


def test_transformed_weights_are_noticed():
    model = Fused()
    plan = record(model, shapes())
    plan.write(GIVEN)
    model.qk.data[4:].mul_(0.5)
    assert plan.differs(GIVEN) == "vLLM transforms tensor k after loading it"


def test_packed_parameters_are_noticed():
    model = Fused()
    plan = record(model, shapes())
    model.qk.data = torch.empty(0)
    assert "parameter qk is empty" in (plan.problem() or "")
    assert "is empty" in (record(nn.ModuleList([Empty()])[0], {"w": (2,)}).problem() or "")


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(0))

    def load_weights(self, weights) -> None:
        blank = torch.zeros(2)
        for _, tensor in weights:
            blank.copy_(tensor)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux")
@pytest.mark.parametrize("family", ["Qwen3", "Llama"])
def test_vllm_models(family, tmp_path):
    """Mapping, dtype change, padding and unchanged memory of vLLM's Qwen3 (tied) and Llama (untied)."""
    import transformers

    config = getattr(transformers, f"{family}Config")(
        vocab_size=150, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, tie_word_embeddings=family == "Qwen3",
    )  # fmt: skip
    getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16).save_pretrained(tmp_path)
    script = Path(__file__).with_name("unpacked_model.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "ok " in done.stdout, done.stderr[-2000:]
