"""The reward `grader`: the score that a problem's own task gives to the answer in the reply.

grader = Grader()
grader(response="so <answer>(3 + 4) * 2</answer>", metadata=prompt.metadata)      # RewardResult(1.0, ...)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import attrs
from attrs.validators import matches_re

from forge_host.api import RewardResult, UsageError, field
from forge_plugin_reasoning_gym.library import make_task
from forge_plugin_reasoning_gym.tasks import ENTRY

MAX_ANSWER = 4000  # characters; graders parse answers, some with costly parsers


@attrs.frozen(kw_only=True)
class Grader:
    """From 0 to 1. An answer of no use to the task scores 0; many tasks give little more to any answer at all."""

    tag: str = field(default="answer", help="tag around the answer", validator=matches_re(r"[A-Za-z][\w-]*"))
    need_tag: bool = field(default=False, help="a reply without the tag scores 0 instead of being the answer whole")
    exact: bool = field(default=False, help="count only a full score, others as 0: tasks give 0.01 to a wrong answer")

    def __call__(self, response: str, metadata: Mapping[str, Any]) -> RewardResult:
        """UsageError if the prompt is none of the dataset `reasoning-gym/tasks`."""
        entry = metadata.get(ENTRY)
        if entry is None:
            raise UsageError(
                "reward `reasoning-gym/grader` grades prompts of the dataset `reasoning-gym/tasks` only",
                fix="set dataset.path: reasoning-gym/tasks",
            )
        answer = self._answer(response)
        if answer is None:
            return RewardResult(0.0, {"answered": 0.0}, "no answer found")
        if len(answer) > MAX_ANSWER:
            return RewardResult(0.0, {"answered": 1.0}, f"an answer of {len(answer)} characters")
        state = random.getstate()
        try:
            score = float(_task(entry["metadata"]["source_dataset"]).score_answer(answer=answer, entry=entry))
        finally:
            random.setstate(state)
        return RewardResult(float(score >= 1.0) if self.exact else score, {"answered": 1.0}, answer[:60])

    def _answer(self, response: str) -> str | None:
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        end = response.rfind(closing)
        start = response.rfind(opening, 0, end) if end >= 0 else -1
        if start >= 0:
            return response[start + len(opening) : end].strip()
        _, thought, rest = response.rpartition("</think>")
        whole = (rest if thought else response).strip()
        return None if self.need_tag or not whole else whole


@lru_cache(maxsize=256)
def _task(name: str) -> Any:
    """Graders look at the problem they are given, so one of any configuration does."""
    return make_task(name, {}, size=1, seed=0)
