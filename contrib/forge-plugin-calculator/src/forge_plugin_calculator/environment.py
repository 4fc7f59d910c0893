"""`calculator`: the model may compute while it answers; the results are put into the conversation.

    user       Janet's ducks lay 16 eggs ...
    assistant  She sells <calc>16 - 3 - 4</calc>
    tool       9
    assistant  eggs, and makes <calc>9 * 2</calc>
    tool       18
    assistant  dollars. #### 18

The grade is the run's rewards' (`rewards: [math]`, which reads the last reply); `tool_reward` can add to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, in_

from forge_host.api import Completion, Episode, Generate, Prompt, field, tool_calls
from forge_plugin_calculator.arithmetic import CalculatorError, calculate

OPENING, CLOSING = "<calc>", "</calc>"
INSTRUCTIONS = (
    "Solve the problem step by step. Write every computation as <calc>EXPRESSION</calc>, and you are told its result. "
    "Write the final answer after ####.\n\n"
    "Example: Tom has 3 boxes of 12 pens and gives 7 away.\nHe has <calc>3 * 12 - 7</calc>\n29\n#### 29"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes an arithmetic expression exactly.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "such as 16 - 3 - 4"}},
            "required": ["expression"],
        },
    },
}


@attrs.frozen(kw_only=True)
class Calculator:
    """Answers calls until the model stops making any. Parts: "calls", "valid" (share of calls with a result)."""

    form: str = field(
        default="tag",
        help="how calls are written: tag (<calc>2 + 2</calc>), or tools (the chat template's, as of Qwen and Hermes)",
        validator=in_(("tag", "tools")),
    )
    max_calls: int = field(default=6, help="calls that are answered; the reply after them is the last", validator=ge(0))
    instructions: str = field(default=INSTRUCTIONS, help="system message of form tag; empty for none")
    role: str = field(default="tool", help="who says the result", validator=in_(("tool", "user")))
    tool_reward: float | None = field(
        default=None, help="reward of a conversation with a call and no wrong one, 0 for others; null gives no reward"
    )

    async def rollout(self, prompt: Prompt, generate: Generate) -> Episode:
        """One episode, the whole conversation."""
        messages: list[Mapping[str, Any]] = list(prompt.messages or ({"role": "user", "content": prompt.text},))
        if self.form == "tag" and self.instructions and messages[0].get("role") != "system":
            messages.insert(0, {"role": "system", "content": self.instructions})
        calls = failed = 0
        while True:
            may_call = calls < self.max_calls
            reply = await generate(
                messages,
                stop=(CLOSING,) if self.form == "tag" and may_call else (),
                tools=(TOOL,) if self.form == "tools" else (),
            )
            asked = self._calls(reply) if may_call and reply.finish_reason != "length" else []
            if not asked:
                break
            messages.append({"role": "assistant", "content": reply.text})
            for expression in asked:
                calls += 1
                try:
                    result = calculate(expression)
                except CalculatorError as error:
                    failed += 1
                    result = f"error: {error}"
                messages.append({"role": self.role, "content": result})
        valid = 1.0 - failed / calls if calls else 0.0
        reward = None if self.tool_reward is None else self.tool_reward * float(valid == 1.0)
        return generate.episode(reward=reward, parts={"calls": float(calls), "valid": valid})

    def _calls(self, reply: Completion) -> list[str]:
        """Expressions that the reply asks to compute: the one it stopped at, or all of its tool calls."""
        if self.form == "tag":
            _, opening, expression = reply.text.rpartition(OPENING)
            return [expression] if opening and CLOSING not in expression and "\n" not in expression.strip() else []
        return [
            "" if call.problem or call.name != "calculator" else str(call.arguments.get("expression", ""))
            for call in tool_calls(reply.text)
        ]
