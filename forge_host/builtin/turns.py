"""Messages as public chat data writes them, in one form: OpenAI's role and content, or ShareGPT's from and value.

    turn({"from": "gpt", "value": "4"}, "c.jsonl:3", "conversations")   # {"role": "assistant", "content": "4"}
"""

from __future__ import annotations

from typing import Any

from forge_host.errors import UsageError

ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
    "bot": "assistant", "system": "system", "developer": "developer", "tool": "tool", "function": "tool",
    "observation": "tool",
}  # fmt: skip


def turn(item: Any, where: str, name: str) -> dict[str, Any]:
    """One message with `role` and `content`; its other keys (`weight`, `tool_calls`) are kept.

    Raises:
        UsageError: it has no role or no content; the message names `where` and the field `name`.
    """
    message = item if isinstance(item, dict) else {}
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if not isinstance(role, str) or role not in ROLES:
        raise UsageError(
            f"field `{name}` holds a message with the role {role!r:.40}", where=where,
            fix=f"give each message a `role` (or `from`): {', '.join(ROLES)}",
        )  # fmt: skip
    if content is None and not message.get("tool_calls"):
        raise UsageError(
            f"field `{name}` holds a message of {role} without `content` (or `value`)", where=where,
            fix="write one, or remove the message",
        )  # fmt: skip
    kept = {key: value for key, value in item.items() if key not in ("role", "from", "content", "value")}
    return {"role": ROLES[role], "content": "" if content is None else content, **kept}
