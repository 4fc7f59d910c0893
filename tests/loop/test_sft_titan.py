"""SFT with the real trainer on a tiny random Llama: its loss is what transformers gives for the assistant's tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forge_host.testing.faults

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHATS = [
    [("user", "2 plus 2"), ("assistant", "4"), ("user", "and 3"), ("assistant", "it is 7")],
    [("system", "count"), ("user", "one two"), ("assistant", "three")],
    [("user", "hello"), ("assistant", "hello you")],
    [("user", "say a"), ("assistant", "a")],
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tags = ["<user>", "<assistant>", "<system>", "<end>"]
    vocab = {token: i for i, token in enumerate([*tags, "\n", *map(chr, range(32, 127))])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated"), decoders.Fuse()
    tokenizer.add_special_tokens(tags)
    path = tmp_path_factory.mktemp("tiny")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=TEMPLATE).save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def masked_loss(folder: str) -> float:
    """Nats a token that transformers gives for every assistant turn and its end, from the text by hand."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for chat in CHATS:
        pieces = []
        for role, text in chat:
            pieces += [(f"<{role}>", False), (f"{text}<end>", role == "assistant"), ("\n", False)]
        ids, counts = [], []
        for text, trained in pieces:
            new = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids, counts = ids + new, counts + [trained] * len(new)
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        for i in range(1, len(ids)):
            if counts[i]:
                total, count = total - float(logprobs[i - 1, ids[i]]), count + 1
    return total / count


@pytest.fixture(scope="module")
def config(tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    lines = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in CHATS]
    (folder / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "model": tiny,
        "algorithm": "sft",
        "dataset": {"path": "sft/chats", "file": str(folder / "chats.jsonl")},
        "training": {
            "batch_size": 4, "max_steps": 8, "seq_len": 128, "learning_rate": 0.01, "dtype": "float32",
            "gradient_accumulation_steps": 2,
        },
        "evaluation": {"interval": 8},
        "trainer": {"use": "titan", "num_threads": 1},
    }  # fmt: skip
    (folder / "c.yaml").write_text(json.dumps(settings))
    return folder / "c.yaml"


def sft(*arguments: str, faults: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "forge_host.cli.main", "sft", *arguments, "--plugins", "sft,titan"]
    if faults:
        command += ["--plugin-file", forge_host.testing.faults.__file__]
    env = {**os.environ, "FORGE_FAULTS": faults}
    return subprocess.run(command, capture_output=True, text=True, timeout=550, env=env)


@pytest.fixture(scope="module")
def whole(config) -> Path:
    """A run from its first step to its last."""
    done = sft(str(config), "--run-dir", str(config.parent / "whole"))
    assert done.returncode == 0, done.stderr
    return config.parent / "whole"


@pytest.mark.slow
def test_the_loss_is_that_of_transformers_and_the_model_comes_out(tiny, whole) -> None:
    metrics = [json.loads(line)["metrics"] for line in (whole / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["eval_loss_first"] == pytest.approx(masked_loss(tiny), abs=1e-4)
    assert metrics[0]["train/loss"] == pytest.approx(summary["eval_loss_first"], abs=1e-4), "all examples are one step"
    assert summary["eval_loss_last"] == pytest.approx(masked_loss(str(whole / "model")), abs=1e-4)
    assert summary["eval_loss_last"] < summary["eval_loss_first"] - 0.5
    said = sum(len(text) + 1 for chat in CHATS for role, text in chat if role == "assistant")
    assert metrics[0]["tokens/trained"] == said


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_costs_that_checkpoint_only(config, whole) -> None:
    """The second one is being written in the background when the trainer dies; the first one is whole and exact."""
    run = config.parent / "killed"
    killed = sft(
        str(config), "--run-dir", str(run), "--set", "checkpoint.interval=2", faults="kill it at trainer.written#2"
    )
    assert killed.returncode == 4 and "trainer" in killed.stderr, killed.stderr
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-000002"]
    again = sft("--resume", str(run))
    assert again.returncode == 0 and "resumed at step 2" in again.stdout, again.stderr
    weights, weights_too = ((path / "model" / "model.safetensors").read_bytes() for path in (whole, run))
    assert weights == weights_too
    assert sorted(p.name for p in (run / "checkpoints").iterdir())[-1] == "step-000008", "written in the background"
