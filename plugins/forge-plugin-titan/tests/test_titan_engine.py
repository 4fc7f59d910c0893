"""The engine in one process on CPU, against transformers and against itself cut in other ways."""

from __future__ import annotations

import random

import attrs
import pytest
import torch
from forge_plugin_titan.config import TitanConfig
from forge_plugin_titan.device import prepare
from titan_helpers import VOCAB, batches, make_row, make_rows, objective, pack, save_model

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import RunError, UsageError

TRAINING = TrainingConfig(dtype="float32", seq_len=64, learning_rate=1e-2, max_steps=10)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, family):
    path = str(tmp_path_factory.mktemp(family))
    save_model(path, family)
    return path


def engine(path, *, training=TRAINING, config=None, frozen=False, run_dir=None):
    prepare("cpu", num_threads=1)
    from forge_plugin_titan.engine import TitanEngine

    return TitanEngine(
        config or TitanConfig(), path, training, ParallelismConfig(), None if frozen else objective(), run_dir=run_dir
    )


def reference_logprobs(model, rows, width):
    out = torch.zeros(len(rows), width)
    for target, row in zip(out, rows, strict=True):
        ids = torch.tensor([row["prompt"] + row["response"]])
        with torch.no_grad():
            logprobs = model(ids).logits[0].float().log_softmax(-1)
        start = len(row["prompt"])
        target[: len(row["response"])] = logprobs[start - 1 : -1].gather(-1, ids[0, start:, None])[:, 0]
    return out


def weights(engine):
    return {name: tensor.clone() for name, tensor in engine.named_tensors()}


def assert_close(left, right, tolerance):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("fuse_qkv", [True, False])
def test_logprobs_are_those_of_transformers(tmp_path, family, tied, fuse_qkv):
    model = save_model(str(tmp_path), family, tied=tied)
    rows = make_rows()
    inputs, targets = batches([rows[:4], rows[4:]])
    found = engine(str(tmp_path), config=TitanConfig(fuse_qkv=fuse_qkv), frozen=True).logprobs(inputs, targets)
    for part, logprobs in zip((rows[:4], rows[4:]), found, strict=True):
        expected = reference_logprobs(model, part, logprobs.shape[1])
        torch.testing.assert_close(logprobs, expected, rtol=0, atol=2e-5)


def test_llama3_rope_scaling_is_that_of_transformers(tmp_path):
    import transformers

    torch.manual_seed(1)
    rope = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=128, rope_parameters=rope, initializer_range=0.3,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(tmp_path)
    rows = [make_row(random.Random(0), range(30), 30)]
    inputs, targets = batches([rows])
    found = engine(str(tmp_path), frozen=True).logprobs(inputs, targets)[0]
    torch.testing.assert_close(found, reference_logprobs(model, rows, 30), rtol=0, atol=2e-5)


@pytest.mark.parametrize("change", ["unshared", "micro-batches", "order", "recomputed", "filled", "chunked"])
def test_a_step_does_not_depend_on_how_it_is_cut(folder, change):
    rows = make_rows(seed=3)
    one = engine(folder)
    one.train_step(*batches([rows]))
    config, training, parts = TitanConfig(), TRAINING, [rows]
    if change == "unshared":
        config = TitanConfig(share_prompts=False)
    elif change == "micro-batches":
        parts = [rows[::2], rows[1::2]]
    elif change == "order":
        parts = [rows[::-1]]
    elif change == "recomputed":
        training = attrs.evolve(TRAINING, gradient_checkpointing=True)
    elif change == "filled":
        config = TitanConfig(pad_to=32)
    else:
        config = TitanConfig(logprob_block=32)
    other = engine(folder, config=config, training=training)
    other.train_step(*batches(parts))
    assert other.metrics()["policy/grad_norm"] == pytest.approx(one.metrics()["policy/grad_norm"], rel=1e-5)
    inputs, targets = batches([rows])
    torch.testing.assert_close(
        other.logprobs(inputs, targets)[0], one.logprobs(inputs, targets)[0], rtol=0, atol=2e-4
    )  # AdamW's first step is the sign of the gradient, so rounding can move a weight whose gradient is about 0


def test_long_segments_use_flash_attention_with_the_same_result(folder, monkeypatch):
    from forge_plugin_titan import attention

    rows = make_rows(seed=4)
    inputs, targets = batches([rows])
    dense = engine(folder, frozen=True).logprobs(inputs, targets)[0]
    monkeypatch.setattr(attention, "FLASH_ELEMENTS", 0)
    torch.testing.assert_close(engine(folder, frozen=True).logprobs(inputs, targets)[0], dense, rtol=0, atol=2e-5)


def test_training_raises_the_logprob_of_what_was_rewarded(folder):
    rows = [{**row, "advantage": 1.0 if i % 2 else -1.0} for i, row in enumerate(make_rows(seed=5))]
    inputs, targets = batches([rows])
    trainer = engine(folder)
    before = trainer.logprobs(inputs, targets)[0]
    losses = [trainer.train_step(inputs, targets) for _ in range(3)]
    gain = (trainer.logprobs(inputs, targets)[0] - before).sum(1)
    assert losses[-1] < losses[0]
    assert gain[1::2].mean() > 0.1 > -0.1 > gain[0::2].mean()


@pytest.mark.parametrize("training", [{}, {"dtype": "bfloat16"}, {"seq_len": 17, "gradient_checkpointing": True}])
def test_a_rehearsed_step_is_the_same_step(folder, training):
    from forge_plugin_titan.rehearsal import rehearse

    plain, rehearsed = (engine(folder, training=attrs.evolve(TRAINING, **training)) for _ in range(2))
    name, master = next(iter(rehearsed.optimizer.masters.items()))
    kept = []
    param = dict(rehearsed.model.named_parameters())[name]
    hook = param.register_post_accumulate_grad_hook(lambda p: kept.append(master.grad is not None))
    rehearse(rehearsed)
    rehearsed.plan_tensors()
    hook.remove()
    assert kept == [training.get("dtype") != "bfloat16"] * 2  # copies' gradients take no memory
    assert not rehearsed.optimizer.adamw.state
    assert all(p.grad is None for p in (*rehearsed.model.parameters(), *rehearsed.optimizer.masters.values()))
    for _ in range(2):
        assert plain.train_step(*batches([make_rows()])) == rehearsed.train_step(*batches([make_rows()]))
    assert_close(weights(plain), weights(rehearsed), 0)


def test_bfloat16_updates_float32_masters(folder):
    """A rate too small for bfloat16's steps still adds up."""
    training = attrs.evolve(TRAINING, dtype="bfloat16", learning_rate=1e-5)
    rows = make_rows(seed=6)
    inputs, targets = batches([rows])
    trainer = engine(folder, training=training)
    before = {name: master.clone() for name, master in trainer.optimizer.masters.items()}
    trainer.train_step(inputs, targets)
    assert all(t.dtype == torch.bfloat16 for _, t in trainer.named_tensors())
    for name, master in trainer.optimizer.masters.items():
        assert master.dtype == torch.float32
        moved = (master - before[name]).abs()
        assert 0 < moved.max() < 1.1e-5
    parameters = dict(trainer.model.named_parameters())
    assert all(torch.equal(parameters[n], m.to(torch.bfloat16)) for n, m in trainer.optimizer.masters.items())


def test_resuming_is_exact(folder, tmp_path):
    training = attrs.evolve(TRAINING, dtype="bfloat16", lr_schedule="cosine", warmup_steps=2)
    steps = [batches([make_rows(seed=s)]) for s in range(4)]
    straight = engine(folder, training=training)
    losses = [straight.train_step(*step) for step in steps]
    first = engine(folder, training=training)
    for step in steps[:2]:
        first.train_step(*step)
    first.save(str(tmp_path))
    second = engine(folder, training=training)
    second.load(str(tmp_path))
    assert [second.train_step(*step) for step in steps[2:]] == losses[2:]
    assert all(torch.equal(a, b) for a, b in zip(weights(second).values(), weights(straight).values(), strict=True))
    for name, master in straight.optimizer.masters.items():
        assert torch.equal(master, second.optimizer.masters[name])


def test_exported_folder_loads_in_transformers(tmp_path, family):
    import transformers

    save_model(str(tmp_path / "in"), family)
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    trainer = engine(str(tmp_path / "in"))
    rows = make_rows(seed=7)
    inputs, targets = batches([rows])
    trainer.train_step(inputs, targets)
    trainer.save_hf(str(tmp_path / "out"))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    model = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path / "out")).eval()
    found = trainer.logprobs(inputs, targets)[0]
    torch.testing.assert_close(found, reference_logprobs(model, rows, found.shape[1]), rtol=0, atol=2e-5)
    names = [name for name, _ in trainer.named_tensors()]
    assert len(names) == len(set(names)) and "lm_head.weight" not in names
    state = model.state_dict()
    for name, tensor in trainer.named_tensors():
        assert torch.equal(tensor, state[name]), name


def test_an_untied_head_is_published(tmp_path, family):
    save_model(str(tmp_path), family, tied=False)
    assert "lm_head.weight" in dict(engine(str(tmp_path), frozen=True).named_tensors())


def test_a_loss_that_is_not_finite_leaves_the_weights_and_saves_the_batch(folder, tmp_path):
    trainer = engine(folder, run_dir=str(tmp_path))
    before = weights(trainer)
    inputs, targets = batches([make_rows(seed=8)])
    targets[0]["advantages"][0, 0] = float("nan")
    with pytest.raises(RunError, match="loss is nan at step 0"):
        trainer.train_step(inputs, targets)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), weights(trainer).values(), strict=True))
    saved = torch.load(tmp_path / "bad_batch_step0.pt", weights_only=True)
    assert torch.equal(saved["inputs"][0]["tokens"], inputs[0]["tokens"])


def test_learning_rate_schedules():
    from forge_plugin_titan.optim import learning_rate

    base = attrs.evolve(TRAINING, learning_rate=1.0, warmup_steps=2, max_steps=6)
    rates = {s: [learning_rate(attrs.evolve(base, lr_schedule=s), i) for i in range(6)] for s in ("constant", "linear")}
    assert rates["constant"] == [0.5, 1, 1, 1, 1, 1]
    assert rates["linear"] == [0.5, 1, 1, 0.75, 0.5, 0.25]
    cosine = [learning_rate(attrs.evolve(base, lr_schedule="cosine"), i) for i in (2, 4, 6)]
    assert cosine == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "positions"}, "without positions"),
        ({"shift": True}, "not how the"),
        ({"response": True}, "`response` differs"),
        ({"long": True}, "training.seq_len is 64"),
        ({"vocab": True}, "outside the model's vocabulary"),
    ],
)
def test_bad_batches_are_refused(folder, change, message):
    rows = make_rows(seed=9)
    if "long" in change:
        rows[0] = make_row(random.Random(0), [1] * 40, 30)
    if "vocab" in change:
        rows[0]["prompt"] = [VOCAB]
    inputs, targets = pack(rows)
    if "drop" in change:
        del inputs["positions"]
    if "shift" in change:
        targets["lengths"] = targets["lengths"] + 1
    if "response" in change:
        targets["response"][0, 0] = (targets["response"][0, 0] + 1) % VOCAB
    with pytest.raises((RunError, UsageError), match=message):
        engine(folder, frozen=True).logprobs([inputs], [targets])


@pytest.mark.parametrize(
    ("training", "config", "message"),
    [
        ({"seq_len": 128}, {}, "the model was made for 64 tokens"),
        ({"compile": True}, {}, "training.compile needs flex or varlen"),
        ({"dtype": "float16"}, {}, "no loss scaling"),
        ({"dtype": "float32", "param_dtype": "bfloat16"}, {}, "wider than"),
        ({}, {"attention": "flex"}, "no backward pass on CPU"),
    ],
)
def test_bad_settings_are_refused(folder, training, config, message):
    with pytest.raises(UsageError, match=message):
        engine(folder, training=attrs.evolve(TRAINING, **training), config=TitanConfig(**config))


def test_unknown_models_are_refused(tmp_path, folder):
    with pytest.raises(UsageError, match=r"config.json is missing"):
        engine(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UsageError, match="supported: llama, qwen3"):
        engine(str(tmp_path))
    (tmp_path / "config.json").write_text(open(f"{folder}/config.json").read())
    with pytest.raises(UsageError, match="has no \\*.safetensors"):
        engine(str(tmp_path))


def test_weights_that_do_not_fit_are_refused(tmp_path, family):
    import json

    save_model(str(tmp_path), family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 40}))
    with pytest.raises(UsageError, match="do not fit config.json, such as layers.0.feed_forward.w1.weight"):
        engine(str(tmp_path))
