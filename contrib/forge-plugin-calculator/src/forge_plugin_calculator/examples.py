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
from pathlib import Path
from typing import Any

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
    rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines() if line.strip()]
    with open(target, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"messages": conversation(row["question"], row["answer"])}) + "\n")
    print(f"{len(rows)} conversations in {target}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m forge_plugin_calculator.examples GSM8K.jsonl OUT.jsonl")
    main(*sys.argv[1:])
