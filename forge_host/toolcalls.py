"""Reads the tool calls in a reply: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes, Qwen 2.5 and
Qwen 3 write them.

    tool_calls('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>')   # [ToolCall("add", {"a": 2})]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@attrs.frozen
class ToolCall:
    """One call a model asks for. `problem` says why it cannot be made; then name and arguments are empty."""

    name: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    problem: str = ""


def tool_calls(text: str) -> list[ToolCall]:
    """All calls in a reply, in order. One that is not finished, as a stop text cuts it, counts to the end."""
    calls, position = [], 0
    while (start := text.find(OPENING, position)) >= 0:
        end = text.find(CLOSING, start)
        end = len(text) if end < 0 else end
        calls.append(_call(text[start + len(OPENING) : end].strip()))
        position = end
    return calls


def _call(text: str) -> ToolCall:
    try:
        given = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        return ToolCall(problem=f"the call is not JSON ({error})")
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return ToolCall(problem="the call has no name")
    arguments = given.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(problem="the call's arguments are not an object")
    return ToolCall(given["name"], arguments)
