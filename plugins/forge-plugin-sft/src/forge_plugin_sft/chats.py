"""The dataset `chats`: conversations from a .jsonl file in the forms that public SFT data comes in.

    messages        {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    ShareGPT        {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
    Alpaca          {"instruction": "...", "input": "...", "output": "..."}
    two fields      {"prompt": "...", "response": "..."}, also completion, answer, question, ...

    dataset = Chats(file="train.jsonl", holdout=0.05)
    dataset[0].messages[-1]             # {"role": "assistant", "content": "..."}

It reads as the host's `jsonl` does: line by line from disk, every line checked before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from forge_host.api import Prompt, UsageError, field
from forge_host.builtin.jsonl import JsonLines
from forge_host.builtin.turns import turn

MESSAGES_FIELDS = ("messages", "conversations", "conversation")
ASKED_FIELDS = ("prompt", "instruction", "question", "problem", "query", "input")
ANSWERED_FIELDS = ("response", "completion", "output", "answer", "solution", "target")


@attrs.frozen(kw_only=True)
class Chats(JsonLines):
    """Conversations of a JSON Lines file; every prompt holds the whole one, its last assistant turn included."""

    path: str = field(alias="file", help="the .jsonl file", file=True)

    def _detect(self, record: Mapping[str, Any], number: int) -> str:
        for name in (*MESSAGES_FIELDS, *ASKED_FIELDS):
            if record.get(name):
                return name
        raise UsageError(
            f"no conversation in the line (none of {', '.join((*MESSAGES_FIELDS, *ASKED_FIELDS))}); it has "
            f"{', '.join(f'`{name}`' for name in record) or 'no fields'}",
            where=f"{self.path}:{number}", fix="set dataset.prompt_field and dataset.target_field",
        )  # fmt: skip

    def _prompt(self, record: Mapping[str, Any], number: int, prompt_field: str, target_field: str | None) -> Prompt:
        where = f"{self.path}:{number}"
        if prompt_field not in record:
            # Lines of one file may come in different forms.
            prompt_field = self.prompt_field or self._detect(record, number)
        value = record.get(prompt_field)
        if isinstance(value, list):
            turns = [turn(item, where, prompt_field) for item in value]
        elif isinstance(value, str) and value.strip():
            turns = [{"role": "user", "content": self._asked(record, prompt_field, value)}]
        else:
            raise UsageError(f"field `{prompt_field}` is neither text nor a conversation", where=where)
        if not turns or turns[-1]["role"] != "assistant":
            turns += self._answer(record, prompt_field, where)
        if isinstance(record.get("system"), str) and record["system"] and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": record["system"]})
        return Prompt(id=f"{self.path.rpartition('/')[2]}:{number}", messages=tuple(turns))

    def _asked(self, record: Mapping[str, Any], name: str, value: str) -> str:
        more = record.get("input") if name == "instruction" else None
        return self.template.replace("{prompt}", f"{value}\n\n{more}" if isinstance(more, str) and more else value)

    def _answer(self, record: Mapping[str, Any], asked: str, where: str) -> list[dict[str, Any]]:
        names = (self.target_field,) if self.target_field else tuple(n for n in ANSWERED_FIELDS if n != asked)
        found = next((name for name in names if record.get(name)), None)
        if found is None:
            raise UsageError(
                f"no response to train on (none of {', '.join(names)}); the line has "
                f"{', '.join(f'`{name}`' for name in record)}", where=where, fix="set dataset.target_field",
            )  # fmt: skip
        value = record[found]
        if isinstance(value, list):
            return [turn(item, where, found) for item in value]
        if not isinstance(value, str):
            raise UsageError(f"field `{found}` is {type(value).__name__}, not text or messages", where=where)
        return [{"role": "assistant", "content": value}]
