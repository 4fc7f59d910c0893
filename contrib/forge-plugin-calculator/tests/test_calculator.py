"""The calculator's arithmetic, its conversations, and what every plugin and environment owes its host."""

import time

import pytest
from forge_plugin_calculator.arithmetic import CalculatorError, calculate
from forge_plugin_calculator.environment import Calculator
from forge_plugin_calculator.examples import conversation

from forge_host.api import Prompt
from forge_host.testing import EnvironmentContract, PluginContract, play

PROMPT = Prompt(id="p", text="Tom has 3 boxes of 12 pens and gives 7 away. How many are left?", target="29")


class TestPlugin(PluginContract):
    plugin = "calculator"


class TestEnvironment(EnvironmentContract):
    environment = "calculator"
    config = {"tool_reward": 0.5}
    prompt = PROMPT
    replies = ("He has <calc>3 * 12</calc>", "and then <calc>36 - 7</calc>", "#### 29")
    reward = 0.5


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("16 - 3 - 4", "9"), ("9*2", "18"), ("$1,200 * 3 =", "3600"), ("1/2", "0.5"), ("10/3", "3.333333"),
        ("2^10", "1024"), ("-(2+3)", "-5"), ("0.1 + 0.2", "0.3"), ("7 % 4", "3"), ("2 ** -1", "0.5"), ("007", "error"),
    ],
)  # fmt: skip
def test_computes(text, result) -> None:
    if result == "error":
        with pytest.raises(CalculatorError):
            calculate(text)
    else:
        assert calculate(text) == result


@pytest.mark.parametrize(
    "text",
    ["", "1/0", "1 % 0", "0 ** -1", "__import__('os')", "x + 1", "9**9**9", "2 ** 0.5", "'a' * 9", "1 if 1 else 2",
     "(" * 5000, "1" * 5000, "9" * 199, "True + 1", "[1]", "1e999", "\x00", "3 +"],
)  # fmt: skip
def test_refuses_at_once(text) -> None:
    began = time.perf_counter()
    with pytest.raises(CalculatorError):
        calculate(text)
    assert time.perf_counter() - began < 0.1


def test_results_stand_in_the_conversation() -> None:
    game = play(Calculator(), PROMPT, TestEnvironment.replies)
    assert [m["content"] for m in game.messages if m["role"] == "tool"] == ["36", "29"]
    assert game.messages[0]["role"] == "system" and game.episodes[0].reward is None
    assert game.episodes[0].parts == {"calls": 2.0, "valid": 1.0}


def test_errors_are_told_and_cost_the_tool_reward() -> None:
    game = play(Calculator(tool_reward=1.0), PROMPT, ["<calc>3 apples</calc>", "29"])
    assert [m["content"] for m in game.messages if m["role"] == "tool"] == ["error: not an expression"]
    assert game.episodes[0].reward == 0.0 and game.episodes[0].parts == {"calls": 1.0, "valid": 0.0}


def test_calls_have_a_limit() -> None:
    game = play(Calculator(max_calls=2), PROMPT, ["<calc>1 + 1</calc>"])
    assert game.num_replies == 3 and game.episodes[0].parts["calls"] == 2.0


def test_tool_calls_of_the_template() -> None:
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 * 12 - 7"}}</tool_call>'
    game = play(Calculator(form="tools"), PROMPT, [call, "#### 29"])
    assert [m["content"] for m in game.messages if m["role"] == "tool"] == ["29"]
    wrong = play(Calculator(form="tools"), PROMPT, ['<tool_call>{"name": "search"}</tool_call>', "29"])
    assert wrong.episodes[0].parts == {"calls": 1.0, "valid": 0.0}


def test_worked_answers_become_conversations() -> None:
    messages = conversation("How many?", "He sold 48/2 = <<48/2=24>>24 and <<x=1>>1.\n#### 24")
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["content"] == "He sold 48/2 = <calc>48/2</calc>" and messages[2]["content"] == "24"
    assert messages[3]["content"] == "24 and 1.\n#### 24"
    # What it trains on is what the environment would say.
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    game = play(Calculator(), Prompt(id="p", text="How many?", target="24"), replies)
    assert [m["content"] for m in game.messages if m["role"] == "tool"] == ["24"]
