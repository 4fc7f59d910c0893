"""Finds the answer in a reply: in <answer> tags, \\boxed{}, after ####, or as its last number.

Every function reads its text once (`str.find`, or patterns that cannot backtrack), so a hostile reply of any form costs
time in proportion to its length; what goes character by character reads no more than LOOKBACK of them.

    find_answers("so \\\\boxed{5}", "boxed", "answer")      # ["5"]
"""

from __future__ import annotations

import re
from collections import deque

#: Characters before the last digit in which the last number is looked for, and most that a box holds.
LOOKBACK = 4096
PLACES = ("tag", "boxed", "hash", "last", "all")

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]++)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]++)?|\.[0-9]++)"
#: A number in running text. Not the 2 of `m2`, `x_2` or `m^2`; a minus counts unless it subtracts (`7-5`).
NUMBER = re.compile(
    r"(?<![\w.^])(?:(?<![)}\]])[-+][ ]?)?[$€£¥₹]?"
    rf"(?:\\[dt]?frac\{{-?[0-9]++\}}\{{[0-9]++\}}|{_DECIMAL}(?:[eE][-+]?[0-9]{{1,3}}(?!\w))?(?:/[0-9]++)?)"
    r"(?:[ ]?\\?%|[ ](?:thousand|million|billion|trillion)\b)?"
)
_BOXED = re.compile(r"\\boxed\s?\{")


def find_answers(text: str, place: str, tag: str) -> list[str]:
    """The answers that stand in `place` (one of PLACES), in order; empty if none."""
    if place == "tag":
        return tagged(text, tag)
    if place == "boxed":
        return boxed(text)
    if place == "hash":
        return [part.partition("\n")[0].strip() for part in text.split("####")[1:]]
    if place == "all":
        return [text.strip()] if text.strip() else []
    return _last_number(text)


def _last_number(text: str) -> list[str]:
    """The last NUMBER. No number goes over a line end, so mostly the last line with a digit is all that is read."""
    digit = max(text.rfind(digit) for digit in "0123456789")
    first, end = max(0, digit - LOOKBACK), digit + 16  # a percent sign or a word as "million" may follow
    for start in (max(first, text.rfind("\n", 0, digit) + 1), first) if digit >= 0 else ():
        if numbers := deque(NUMBER.finditer(text, start, end), maxlen=1):
            return [numbers[0].group()]
    return []


def tagged(text: str, tag: str) -> list[str]:
    """Contents of `<tag>...</tag>`; of an opening tag that is repeated only the last before the end counts."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, position = [], 0
    while (end := text.find(closing, position)) >= 0:
        start = text.rfind(opening, position, end)
        if start >= 0:
            found.append(text[start + len(opening) : end].strip())
        position = end + len(closing)
    return found


def boxed(text: str) -> list[str]:
    """Contents of `\\boxed{...}` with balanced braces; one that is not closed within LOOKBACK ends the search."""
    braces = text.replace("\\{", "  ").replace("\\}", "  ") if "\\boxed" in text else ""  # escaped ones do not count
    found, position = [], 0
    while match := _BOXED.search(text, position):
        start = at = match.end()
        depth, limit = 1, start + LOOKBACK
        while depth and (close := braces.find("}", at, limit)) >= 0:
            depth += braces.count("{", at, close) - 1
            at = close + 1
        if depth:
            break
        found.append(text[start : at - 1].strip())
        position = at
    return found


def after_thinking(text: str) -> str:
    """What follows the last `</think>`; the whole text if there is none."""
    return text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text


def target_answer(target: str) -> str:
    """The answer in a data set's target: after `####` (GSM8K), in the last `\\boxed{}` (MATH), or all of it."""
    if "####" in target:
        return target.rpartition("####")[2].strip()
    if "boxed" in target and (found := boxed(target)):
        return found[-1]
    return target.strip()
