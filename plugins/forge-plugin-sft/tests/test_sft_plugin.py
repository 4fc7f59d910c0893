"""The plugin's contracts, and every form of chat data it reads."""

from __future__ import annotations

import json

import pytest
import torch
from forge_plugin_sft.chats import Chats

from forge_host.errors import UsageError
from forge_host.testing import LossContract, PluginContract, load_component

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


class TestPlugin(PluginContract):
    plugin = "sft"
    configs = {"dataset:chats": {"file": "chats.jsonl"}}


class TestSFTLoss(LossContract):
    ref = "sft/sft"
    policy_gradient = ""  # maximum likelihood: advantages have no part in it


def test_loss_is_the_negative_log_likelihood() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]])
    assert torch.equal(load_component("loss", "sft/sft")(logprobs=logprobs), -logprobs)


def chats(tmp_path, *records, **options) -> Chats:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Chats(file=str(path), **options)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": CHAT},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"instruction": "2+2?", "input": "", "output": "4"},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"question": "2+2?", "answer": "4"},
    ],
    ids=["messages", "sharegpt", "alpaca", "two fields", "two lists", "question"],
)
def test_every_form_is_the_same_conversation(tmp_path, record) -> None:
    (prompt,) = chats(tmp_path, record)
    assert [dict(m) for m in prompt.messages] == CHAT and prompt.id == "chats.jsonl:1"


def test_alpaca_input_system_message_and_mixed_lines(tmp_path) -> None:
    alpaca = {"instruction": "Add.", "input": "2 and 2", "output": "4", "system": "Be short."}
    first, second = chats(tmp_path, alpaca, {"messages": [*CHAT[:1], {**CHAT[1], "weight": 0}, *CHAT]})
    assert [m["content"] for m in first.messages] == ["Be short.", "Add.\n\n2 and 2", "4"]
    assert second.messages[1]["weight"] == 0 and len(second.messages) == 4


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "x"}, r"chats.jsonl:2: no conversation in the line .* it has `text`"),
        ({"prompt": "x", "level": 1}, r"chats.jsonl:2: no response to train on .* the line has `prompt`, `level`"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"chats.jsonl:2: field `messages` holds a message"),
        ({"prompt": "x", "response": 4}, r"chats.jsonl:2: field `response` is int, not text or messages"),
    ],
)
def test_a_bad_line_is_named(tmp_path, record, message) -> None:
    with pytest.raises(UsageError, match=message):
        len(chats(tmp_path, {"messages": CHAT}, record))


def test_splits_share_no_conversation(tmp_path) -> None:
    records = [{"prompt": f"{i}?", "response": str(i)} for i in range(200)]
    sides = [{p.id for p in chats(tmp_path, *records, split=split, holdout=0.2)} for split in ("train", "test")]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == 200 and 20 < len(sides[1]) < 60
