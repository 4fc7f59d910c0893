"""`math`: 1 if the reply's answer equals the target.

Why: string comparison takes 5.0 for wrong and a substring search takes 12 for 2. Here the answer is found in stated
places, numbers are compared exactly, all else goes to math-verify in a process of its own that is killed at a deadline.

    MathReward()(response="... so <answer>$1,000</answer>", target="#### 1000").value       # 1.0
"""

from __future__ import annotations

import re
from functools import lru_cache

import attrs
from attrs.validators import and_, deep_iterable, ge, gt, in_, matches_re, min_len

from forge_host.api import RewardResult, field
from forge_plugin_math.extract import PLACES, after_thinking, find_answers, target_answer
from forge_plugin_math.numbers import Number, clean, equal, only_number, read_number

MAX_ANSWER = 2000  # characters beyond the target's; a longer answer is wrong, and is not looked into
MAX_SYMBOLIC = 500  # characters; longer answers are not handed to computer algebra
_ARITHMETIC = re.compile(r"[0-9)}]\s?(?:[-+*×÷]|\\times|\\cdot|\\div|/)\s?[-0-9({\\]|\\frac|!")
_COMMAND = re.compile(r"\\[A-Za-z]+|\b(?:sqrt|sin|cos|tan|log|ln|exp|pi)\b|\{[a-z]?matrix\}")
_WORD = re.compile(r"[^\W\d_]{3,}")


@attrs.frozen(kw_only=True)
class MathReward:
    """Grades a reply against the target; `None` when there is no target to grade against.

    The first place of `answer_from` in which the reply has an answer is used, and there the last one. A target is read
    like its data sets write it: after `####`, in the last `\\boxed{}`, or whole.
    """

    answer_from: tuple[str, ...] = field(
        default=("tag", "boxed", "hash", "last"),
        help="places an answer is looked for, in order: tag, boxed, hash (after ####), last (number), all (the reply)",
        converter=tuple,
        validator=and_(min_len(1), deep_iterable(in_(PLACES))),
    )
    tag: str = field(default="answer", help="name of the tag", validator=matches_re(r"[A-Za-z][\w-]*"))
    strict: bool = field(
        default=False,
        help="take only a marked answer (not the last number), given once, bare: no unit, currency or words around it",
    )
    tolerance: float = field(
        default=1e-6, help="for numbers that are not whole; smaller for targets below 0.1", validator=ge(0.0)
    )
    partial_credit: float = field(
        default=0.0,
        help="value when the answer in its place is wrong or missing but the reply's last number is right",
        validator=ge(0.0),
    )
    unevaluated: bool = field(
        default=False, help="accept arithmetic such as 3+4 or 14/2 where the target is the whole number 7"
    )
    timeout_s: float = field(
        default=3.0,
        help="deadline of one symbolic comparison, and of waiting for its turn; below half of reward.timeout_s",
        unit="s",
        validator=gt(0),
    )
    compat: str = field(
        default="none",
        help="torchforge reproduces the values of its MathReward and ignores the other fields",
        validator=in_(("none", "torchforge")),
    )

    def __call__(self, response: str, target: str | None) -> RewardResult | float | None:
        """Value 1 or 0 (or `partial_credit`), part "answered" 1 if an answer was found.

        TimeoutError or RuntimeError if the symbolic comparison did not come to an end; that is no grade.
        """
        if self.compat == "torchforge":
            return 0.0 if target is None else torchforge(response, target)
        if target is None or not target_answer(target):
            return None
        gold, gold_number = _gold(target)
        reply = after_thinking(response)
        for place in self.answer_from:
            if self.strict and place == "last":
                continue
            if found := find_answers(reply, place, self.tag):
                break
        else:
            return self._partial(reply, gold_number, RewardResult(0.0, {"answered": 0.0}, "no answer found"))
        limit = MAX_ANSWER + len(gold)
        if self.strict and len({clean(text) if len(text) <= limit else text for text in set(found)}) > 1:
            return RewardResult(0.0, {"answered": 1.0}, f"{len(found)} different answers in {place}")
        if len(found[-1]) > limit:
            wrong = RewardResult(0.0, {"answered": 1.0}, f"{place}: an answer of {len(found[-1])} characters")
            return self._partial(reply, gold_number, wrong)
        answer = clean(found[-1])
        shown = answer if len(answer) <= 60 else answer[:57] + "..."
        if self._right(answer, gold, gold_number):
            return RewardResult(1.0, {"answered": 1.0}, f"{place}: {shown}")
        wrong = RewardResult(0.0, {"answered": 1.0}, f"{place}: {shown} is not {gold[:60]}")
        return wrong if place == "last" else self._partial(reply, gold_number, wrong)

    def _right(self, answer: str, gold: str, gold_number: Number | None) -> bool:
        if not answer:
            return False
        if gold_number is None:
            return _same_text(answer, gold) or self._symbolic(answer, gold)
        number = read_number(answer)
        if number is None and not self.strict:
            _, equals, last = answer.rpartition("=")
            number = (read_number(last.strip()) if equals else None) or only_number(answer)
        if number is None:
            if self.strict and "=" in answer:
                return False
            if not self.unevaluated and isinstance(gold_number.value, int) and _ARITHMETIC.search(answer):
                return False
            return self._symbolic(answer, gold)
        if self.strict and not number.plain and not (number.percent and gold_number.percent):
            return False
        if number.quotient and not (self.unevaluated or gold_number.quotient):
            return False
        return equal(number, gold_number, tolerance=self.tolerance, strict=self.strict)

    def _partial(self, reply: str, gold: Number | None, otherwise: RewardResult) -> RewardResult:
        if self.partial_credit and gold and (last := find_answers(reply, "last", self.tag)):
            number = read_number(clean(last[0]))
            if number and equal(number, gold, tolerance=self.tolerance, strict=self.strict):
                note = f"{otherwise.note}; its last number is right"
                return RewardResult(self.partial_credit, otherwise.parts, note)
        return otherwise

    def _symbolic(self, answer: str, gold: str) -> bool:
        if not (_is_formula(answer) and _is_formula(gold)):
            return False
        from forge_plugin_math.symbolic import checker  # late: most runs never need the process

        return checker().equal(gold, answer, timeout_s=self.timeout_s)


def _is_formula(text: str) -> bool:
    """Whether computer algebra may have something to say: no prose, no list of numbers with blanks between them."""
    words = _WORD.findall(_COMMAND.sub(" ", text))
    return 0 < len(text) <= MAX_SYMBOLIC and not words and not re.search(r"[0-9]\s+[0-9]", text)


@lru_cache(maxsize=65_536)
def _gold(target: str) -> tuple[str, Number | None]:
    gold = clean(target_answer(target))
    return gold, read_number(gold)


def _same_text(a: str, b: str) -> bool:
    def plain(text: str) -> str:
        text = " ".join(text.split()).casefold()
        return text[1:-1] if len(text) == 3 and text[0] == "(" and text[2] == ")" else text  # "(B)" is "B"

    return plain(a) == plain(b)


def torchforge(response: str, target: str) -> float:
    """What torchforge's MathReward gives.

    1.0 if the first `<answer>` span is within 1e-6 of the target, otherwise 0.1 if the target's text stands anywhere
    outside the spans (so a 12 holds a 2), otherwise 0. A target that is no number gives 0.
    """
    number = _float(target)
    if number is None:
        return 0.0
    first, outside = _spans(response)
    answer = _float(first) if first is not None else None
    if answer is not None and abs(number - answer) < 1e-6:
        return 1.0
    text = str(int(number)) if number.is_integer() else str(number)
    return 0.1 if text in outside else 0.0


def _spans(response: str) -> tuple[str | None, str]:
    """The first `<answer>` span and the text outside all of them, in time proportional to the length."""
    first, outside, position = None, [], 0
    while (start := response.find("<answer>", position)) >= 0:
        end = response.find("</answer>", start)
        if end < 0:
            break
        first = response[start + len("<answer>") : end] if first is None else first
        outside.append(response[position:start])
        position = end + len("</answer>")
    return first, "".join([*outside, response[position:]])


def _float(text: str) -> float | None:
    try:
        return float(re.sub(r"[$,\s]", "", text))
    except ValueError:
        return None
