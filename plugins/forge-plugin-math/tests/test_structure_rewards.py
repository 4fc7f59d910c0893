"""`thinking` and `format`: values, and time in proportion to the length."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from forge_plugin_math.structure import FormatReward, ThinkingReward
from hypothesis import given
from hypothesis import strategies as st

from forge_host.errors import UsageError


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>2 and 2</think>4", 1.0),
        ("4 < THINK >x< / Think >", 1.0),
        ("<think></think><think>x</think>", 1.0),
        ("<think> \n </think>4", 0.2),
        ("<think>2 and 2", 0.2),
        ("</think>4", 0.2),
        ("x</think><think>", 0.2),
        ("<think><think></think>", 0.2),
        ("<thinking>4", 0.0),
        ("4", 0.0),
        ("", 0.0),
    ],
)
def test_thinking(response: str, value: float) -> None:
    assert ThinkingReward()(response) == value


@given(st.lists(st.sampled_from(["<think>", "</think>", "< /THINK>", " ", "x", "<"]), max_size=10).map("".join))
def test_thinking_is_torchforges_but_for_nested_tags(response: str) -> None:
    blocks = re.findall(r"<\s*think\s*>(.*?)<\s*/\s*think\s*>", response, re.IGNORECASE | re.DOTALL)
    filled = any(re.sub(r"<\s*think\s*>", "", block, flags=re.IGNORECASE).strip() for block in blocks)
    attempt = re.search(r"<\s*/?\s*think\s*>", response, re.IGNORECASE)
    assert ThinkingReward()(response) == (1.0 if filled else 0.2 if attempt else 0.0)


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (" <think>x</think> 4", 1.0),
        ("so <think>x</think> 4", 0.2),
        ("<think>x</think>", 0.2),
        ("<think>x</think><think>x</think>4", 0.2),
        ("</think>x<think>4", 0.2),
        ("4", 0.0),
    ],
)
def test_thinking_strict(response: str, value: float) -> None:
    assert ThinkingReward(strict=True)(response) == value


def test_thinking_opened_by_the_template() -> None:
    assert ThinkingReward(opened=True, strict=True)("x</think>4") == 1.0
    assert ThinkingReward(opened=True)("x") == 0.2
    assert ThinkingReward(full=2.0, partial=0.5)("<think>x") == 0.5


@pytest.mark.parametrize(
    ("fields", "response", "value"),
    [
        ({}, "<think>x</think>\n<answer>4</answer>\n", 1.0),
        ({}, "<answer>4</answer><think>x</think>", 0.0),
        ({}, "<think>x</think><answer></answer>", 0.0),
        ({}, "<think>x</think><answer>4</answer><answer>5</answer>", 0.0),
        ({}, "<think>x<answer></think>4</answer>", 0.0),
        ({}, "so <think>x</think><answer>4</answer>", 0.0),
        ({"strict": False}, "so <think>x</think> then <answer>4</answer>.", 1.0),
        ({"tags": ["a"]}, "<a>x</a>", 1.0),
        ({"pattern": r"\d+"}, "42", 1.0),
        ({"pattern": r"\d+"}, "42 ", 0.0),
        ({"pattern": "a.b"}, "a\nb", 1.0),
    ],
)
def test_format(fields: dict[str, Any], response: str, value: float) -> None:
    assert FormatReward(**fields)(response) == value


def test_format_refuses() -> None:
    with pytest.raises(UsageError, match="no regular expression"):
        FormatReward(pattern="(")
    with pytest.raises(UsageError, match="neither pattern nor tags"):
        FormatReward(tags=())


@pytest.mark.parametrize("piece", ["<think>", "<", "< ", "</think>", " ", "<\n/", "<think>x</think>"])
def test_time_grows_in_proportion(piece: str) -> None:
    def best(size: int) -> float:
        text, times = "<" + (piece * size)[:size], []
        for _ in range(4):
            start = time.process_time()
            for reward in (ThinkingReward(), ThinkingReward(strict=True), FormatReward()):
                reward(text)
            times.append(time.process_time() - start)
        return min(times)

    assert best(256_000) < 24 * best(32_000) + 0.002
