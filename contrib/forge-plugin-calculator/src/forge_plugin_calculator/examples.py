"""GSM8K's worked answers as conversations with the calculator, for SFT before a small model can use it at all.

    python -m forge_plugin_calculator.examples gsm8k/train.jsonl train.jsonl
    forge-host sft gsm8k_sft.yaml

They have no system message: a model that was trained on them needs no instructions (`environment.instructions: ""`).

GSM8K notes a computation as `<<48/2=24>>24`; here it becomes `<calc>48/2</calc>`, a turn of the tool that says 24, and
the model's next turn, which begins with 24.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from forge_host.api import UsageError
from forge_host.builtin.jsonl import JsonLines
from forge_plugin_calculator.arithmetic import CalculatorError, calculate
from forge_plugin_calculator.environment import CLOSING, OPENING

NOTE = re.compile(r"<<([^<>=]*)=[^<>]*>>")


def conversation(question: str, answer: str) -> list[Mapping[str, Any]]:
    """The messages of one problem; a computation that the calculator refuses stays text."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": question}]
    said, position = "", 0
    for note in NOTE.finditer(answer):
        said, position = said + answer[position : note.start()], note.end()
        try:
            result = calculate(note.group(1))
        except CalculatorError:
            continue
        call = f"{said}{OPENING}{note.group(1)}{CLOSING}"
        messages += [{"role": "assistant", "content": call}, {"role": "tool", "content": result}]
        said = ""
    return [*messages, {"role": "assistant", "content": said + answer[position:]}]


def main(source: str, target: str) -> None:
    """Rewrite GSM8K's file `source` as `target`. UsageError if it is not one."""
    prompts = JsonLines(path=source, prompt_field="question", target_field="answer")
    with open(target, "w", encoding="utf-8") as file:
        for prompt in prompts:
            file.write(json.dumps({"messages": conversation(prompt.text or "", prompt.target or "")}) + "\n")
    print(f"{len(prompts)} conversations in {target}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m forge_plugin_calculator.examples GSM8K.jsonl OUT.jsonl")
    try:
        main(*sys.argv[1:])
    except (OSError, UsageError) as error:
        raise SystemExit(f"error: {error}") from None
