"""SFT with the real trainer on a tiny random Llama: its loss is what transformers gives for the assistant's tokens."""

import json
import os
import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_the_loss_is_that_of_transformers_and_the_model_comes_out(tiny, tmp_path) -> None:
    data = tmp_path / "chats.jsonl"
    lines = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in CHATS]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {
        "model": tiny,
        "algorithm": "sft",
        "dataset": {"path": "sft/chats", "file": str(data)},
        "training": {
            "batch_size": 4, "max_steps": 8, "seq_len": 128, "learning_rate": 0.01, "dtype": "float32",
            "gradient_accumulation_steps": 2,
        },
        "evaluation": {"interval": 8},
        "trainer": {"use": "titan", "num_threads": 1},
        "run_dir": str(tmp_path / "runs"),
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "forge_host.cli.main", "sft", str(tmp_path / "c.yaml"), "--plugins", "sft,titan"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, env={**os.environ})
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    metrics = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_loss_first"] == pytest.approx(masked_loss(tiny), abs=1e-4)
    assert metrics[0]["train/loss"] == pytest.approx(summary["eval_loss_first"], abs=1e-4), "all examples are one step"
    assert summary["eval_loss_last"] == pytest.approx(masked_loss(str(run / "model")), abs=1e-4)
    assert summary["eval_loss_last"] < summary["eval_loss_first"] - 0.5
    said = sum(len(text) + 1 for chat in CHATS for role, text in chat if role == "assistant")
    assert metrics[0]["tokens/trained"] == said
