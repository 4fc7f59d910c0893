"""LoRA, offloading, running out of memory, and the benchmark, on CPU."""

from __future__ import annotations

import os

import attrs
import pytest
import torch
from forge_plugin_titan.config import TitanConfig
from forge_plugin_titan.device import prepare
from titan_helpers import batches, make_rows, objective, save_model

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import RunError, UsageError

TRAINING = TrainingConfig(dtype="float32", seq_len=64, learning_rate=1e-2)
LORA = TitanConfig(lora_rank=4, lora_alpha=8.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("qwen3"))
    save_model(path, "qwen3")
    return path


def engine(path, config=None, training=TRAINING):
    prepare("cpu", num_threads=1)
    from forge_plugin_titan.engine import TitanEngine

    return TitanEngine(config or TitanConfig(), path, training, ParallelismConfig(), objective())


def test_lora_trains_adapters_and_publishes_merged_weights(folder, tmp_path):
    inputs, targets = batches([make_rows(seed=1)])
    whole, lora = engine(folder), engine(folder, LORA)
    base = whole.logprobs(inputs, targets)[0]
    torch.testing.assert_close(lora.logprobs(inputs, targets)[0], base)  # adapters begin as nothing
    assert set(lora.optimizer.masters) == {n for n, _ in lora.model.named_parameters() if "lora_" in n}
    frozen = {n: p.clone() for n, p in lora.model.named_parameters() if "lora_" not in n}
    for _ in range(3):
        lora.train_step(inputs, targets)
    assert all(torch.equal(p, frozen[n]) for n, p in lora.model.named_parameters() if n in frozen)
    trained = lora.logprobs(inputs, targets)[0]
    assert (trained - base).abs().max() > 0.05
    torch.testing.assert_close(lora.logprobs(inputs, targets, adapters=False)[0], base)
    torch.testing.assert_close(lora.logprobs(inputs, targets)[0], trained)  # they are on again
    published = dict(lora.named_tensors())
    assert {n: t.shape for n, t in published.items()} == {n: t.shape for n, t in whole.named_tensors()}
    lora.save_hf(str(tmp_path / "out"))
    torch.testing.assert_close(engine(str(tmp_path / "out")).logprobs(inputs, targets)[0], trained, rtol=0, atol=2e-4)


def test_lora_only_where_it_was_asked_for(folder):
    trainer = engine(folder, attrs.evolve(LORA, lora_targets=("wkv",)))
    names = {n.split(".")[-3] for n in trainer.optimizer.masters}
    assert names == {"wk", "wv"}
    with pytest.raises(UsageError, match="lora_targets is empty"):
        engine(folder, attrs.evolve(LORA, lora_targets=()))
    with pytest.raises(UsageError, match="no adapters to leave out"):
        engine(folder).logprobs(*batches([make_rows()]), adapters=False)


def test_lora_in_bfloat16_resumes_exactly(folder, tmp_path):
    training = attrs.evolve(TRAINING, dtype="bfloat16")
    steps = [batches([make_rows(seed=s)]) for s in range(3)]
    straight, first = engine(folder, LORA, training), engine(folder, LORA, training)
    assert {p.dtype for p in straight.model.parameters()} == {torch.bfloat16}
    losses = [straight.train_step(*step) for step in steps]
    first.train_step(*steps[0])
    first.save(str(tmp_path))
    second = engine(folder, LORA, training)
    second.load(str(tmp_path))
    assert [second.train_step(*step) for step in steps[1:]] == losses[1:]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_master_weights_take_the_same_steps(folder, dtype):
    from forge_plugin_titan.optim import Optimizer
    from forge_plugin_titan.parallel import DTYPES

    training = attrs.evolve(TRAINING, dtype=dtype)
    plain, other = engine(folder, training=training), engine(folder, training=training)
    if dtype == "bfloat16":  # the first optimizer has rounded the model already
        for parameter, master in zip(other.model.parameters(), list(other.optimizer.masters.values()), strict=True):
            parameter.data = master.clone()
        for parameter in other.model.parameters():
            parameter._post_accumulate_grad_hooks.clear()
    other.optimizer = Optimizer(other.model, training, DTYPES[dtype], copies=True, offload=True)
    parameters = dict(other.model.named_parameters())
    assert all(m.data_ptr() != parameters[n].data_ptr() for n, m in other.optimizer.masters.items())
    for seed in range(2):
        step = batches([make_rows(seed=seed), make_rows(seed=seed + 9)])
        assert other.train_step(*step) == plain.train_step(*step)
    for name, master in plain.optimizer.masters.items():
        assert torch.equal(master, other.optimizer.masters[name])


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer step"])
def test_out_of_memory_names_the_phase_and_the_knobs(folder, monkeypatch, phase):
    trainer = engine(folder)

    def fail(*_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    if phase == "forward":
        monkeypatch.setattr(trainer.model, "forward", fail)
    elif phase == "backward":
        monkeypatch.setattr(torch.Tensor, "backward", fail)
    else:
        monkeypatch.setattr(trainer.optimizer.adamw, "step", fail)
    with pytest.raises(RunError, match=f"out of memory in the {phase}") as caught:
        trainer.train_step(*batches([make_rows()]))
    for knob in ("training.micro_batch_tokens", "training.gradient_checkpointing", "services.trainer.procs"):
        assert knob in str(caught.value)


def test_bench_rows_agree_and_a_bad_row_is_only_that(tmp_path, monkeypatch):
    from forge_plugin_titan import bench
    from forge_plugin_titan.measure import measure
    from forge_plugin_titan.shapes import random_model

    path = random_model(tmp_path / "tiny", "tiny")
    task = bench.Task(
        model=path, tokens=512, prompt=16, response=16, group=4, steps=1, warmup=1, device="cpu", peak=1e12,
        profile=str(tmp_path / "profile"),
    )  # fmt: skip
    rows = [measure(task, name, bench.CPU_ROWS[name]) for name in ("shared", "unshared")]
    assert rows[0]["grad_norm"] == pytest.approx(rows[1]["grad_norm"], rel=0.02)
    assert rows[1]["mfu"] > rows[1]["mfu_done"] > 0 and rows[0]["useful_share"] == 1.0
    assert (tmp_path / "profile" / "shared.txt").read_text()
    text = bench.table([*rows, {"row": "broken", "error": "RunError: out of memory"}])
    assert "broken" in text.splitlines()[3] and len(text.splitlines()) == 4
    with pytest.raises(UsageError, match="no row `warp`"):
        bench.rows_for("cpu", ["warp"])


def test_what_the_user_set_for_the_process_stays(monkeypatch):
    from forge_plugin_titan.actor import cpu_environment

    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    assert cpu_environment().keys() == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    assert cpu_environment().keys() == {"MALLOC_MMAP_THRESHOLD_"}
