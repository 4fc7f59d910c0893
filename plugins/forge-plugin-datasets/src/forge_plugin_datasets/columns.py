"""Rows to prompts: which columns hold what, found once, from the first row.

    columns = Columns.find(config, {"question": "2 + 2?", "answer": "It is 4.\\n#### 4"}, "gsm8k")
    columns.prompt(row, "gsm8k:train:0").target         # "4"

Known forms: GSM8K (the answer behind ####), MATH (the last \\boxed{}), chats (messages, ShareGPT conversations),
Alpaca, and two columns. The whole worked answer stays in the metadata as `response`, which SFT trains on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from forge_host.api import Prompt, UsageError
from forge_host.builtin.turns import turn
from forge_plugin_datasets.config import HuggingFace

MESSAGES = ("messages", "conversations", "conversation")
PROMPTS = ("prompt", "question", "problem", "instruction", "query")
TARGETS = ("target", "answer", "solution")
CATEGORIES = ("category", "type", "subject")
GSM8K_MARK = "####"
BOXED = "\\boxed{"


@attrs.frozen(kw_only=True)
class Columns:
    """Which column is what. `boxed`: the target is the last \\boxed{} of its column."""

    config: HuggingFace
    prompt_field: str
    target_field: str | None
    category_field: str | None
    answer_after: str | None
    boxed: bool

    @classmethod
    def find(cls, config: HuggingFace, row: Mapping[str, Any], where: str) -> Columns:
        """Columns as the configuration names them, else as `row` (the first) shows.

        Raises:
            UsageError: a named column is not there, or none can be the prompt; the message lists the columns there.
        """
        for key in ("prompt_field", "target_field", "category_field"):
            name = getattr(config, key)
            if name is not None and name not in row:
                raise UsageError(
                    f"dataset.{key} is `{name}`; the columns are {_listed(row)}", where=where, fix="name one of them"
                )
        prompt = config.prompt_field or next((n for n in (*MESSAGES, *PROMPTS) if row.get(n)), None)
        if prompt is None:
            raise UsageError(
                f"no prompt column (none of {', '.join((*MESSAGES, *PROMPTS))}); the columns are {_listed(row)}",
                where=where, fix="set dataset.prompt_field",
            )  # fmt: skip
        target = config.target_field or next((n for n in TARGETS if n in row and n != prompt), None)
        text = row.get(target) if target else None
        worked = isinstance(text, str) and config.answer_after is None
        return cls(
            config=config,
            prompt_field=prompt,
            target_field=target,
            category_field=config.category_field or next((n for n in CATEGORIES if isinstance(row.get(n), str)), None),
            answer_after=GSM8K_MARK if worked and GSM8K_MARK in str(text) else config.answer_after,
            boxed=worked and GSM8K_MARK not in str(text) and BOXED in str(text),
        )

    def key(self, row: Mapping[str, Any]) -> str:
        """What two rows with the same prompt have in common."""
        value = row.get(self.prompt_field)
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=repr)

    def prompt(self, row: Mapping[str, Any], id: str) -> Prompt:
        """The row as a prompt. UsageError: a column is missing, empty, or not what it should be."""
        for name in (self.prompt_field, self.target_field):
            if name is not None and name not in row:
                raise UsageError(f"column `{name}` is missing; the columns are {_listed(row)}", where=id)
        metadata = {k: v for k, v in row.items() if k not in (self.prompt_field, self.target_field) and _is_plain(v)}
        if self.category_field is not None and row.get(self.category_field) is not None:
            metadata["category"] = str(row[self.category_field])
        target = self._target(row, metadata, id)
        value = row[self.prompt_field]
        if isinstance(value, list) and value:
            messages = tuple(turn(item, id, self.prompt_field) for item in value)
            return Prompt(id=id, messages=messages, target=target, metadata=metadata)
        if not isinstance(value, str) or not value.strip():
            raise UsageError(
                f"column `{self.prompt_field}` is {_kind(value)}, not text or messages", where=id,
                fix="leave such rows out, or name another column as dataset.prompt_field",
            )  # fmt: skip
        more = row.get("input") if self.prompt_field == "instruction" else None
        text = f"{value}\n\n{more}" if isinstance(more, str) and more else value
        return Prompt(
            id=id, text=self.config.template.replace("{prompt}", text), target=target, metadata=metadata
        )

    def _target(self, row: Mapping[str, Any], metadata: dict[str, Any], id: str) -> str | None:
        value = row[self.target_field] if self.target_field else None
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise UsageError(
                f"column `{self.target_field}` is {_kind(value)}, not text or a number", where=id,
                fix="name another column as dataset.target_field",
            )  # fmt: skip
        if self.answer_after is None and not self.boxed:
            return value
        metadata.setdefault("response", value)
        if self.boxed:
            return last_boxed(value) or value
        assert self.answer_after is not None
        if self.answer_after not in value:
            raise UsageError(
                f"column `{self.target_field}` has no `{self.answer_after}`", where=id,
                fix="leave such rows out, or set dataset.answer_after",
            )  # fmt: skip
        return value.rpartition(self.answer_after)[2].strip()


def last_boxed(text: str) -> str | None:
    """What the last \\boxed{...} holds, nested braces included; None without a closed one."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    depth = 0
    for index in range(start + len(BOXED) - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + len(BOXED) : index]
    return None


def _is_plain(value: Any) -> bool:
    """Whether metadata can hold it: checkpoints and records are JSON, so images and audio are left out."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in row)


def _kind(value: Any) -> str:
    if value is None or value in ("", []) or (isinstance(value, str) and not value.strip()):
        return "empty"
    return type(value).__name__
