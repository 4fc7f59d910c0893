"""Reads a whole text as one exact number: 5, 5.0, $5, 1,000, 50%, 1/2, \\frac{1}{2}, 1 1/2, "5 eggs", "2 million".

Why: nearly all targets of word problems are numbers, and exact fractions compare 100 times faster than computer algebra
and without its surprises.

    read_number("$1,234.50")        # Number(value=Fraction(2469, 2), percent=False, plain=False, quotient=False)
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from forge_plugin_math.extract import NUMBER

MAX_DIGITS = 400  # longer ones are no answers, and Python's int refuses some thousands
MAX_EXPONENT = 400

_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:[ ][0-9]{3})+|[0-9]++"
_WHOLE = re.compile(
    rf"""(?P<sign>[-+]?)\s?(?P<currency>[$€£¥₹]?)\s?(?P<sign2>[-+]?)
    (?:
        (?:(?P<mixed>[0-9]++)\s?(?:\s|(?=\\frac)))?
        (?:\\frac\{{(?P<num1>-?[0-9]++)\}}\{{(?P<den1>[0-9]++)\}}|(?P<num2>[0-9]++)\s?/\s?(?P<den2>[0-9]++))
    |
        (?P<integer>{_GROUPED})?(?P<decimal>\.[0-9]*+)?(?:[eE](?P<exponent>[-+]?[0-9]{{1,4}}))?
    )
    (?P<unit>(?:[^0-9].*)?)""",
    re.VERBOSE | re.DOTALL,
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ONE_LETTER_UNITS = frozenset("mgshlLWVJNACF")
#: Words and names that change a number instead of naming what it counts.
_NOT_UNITS = frozenset(
    (
        "pi e i x y z sqrt sin cos tan log ln exp mod choose factorial over and or to by times plus minus divided "
        "multiplied half halves quarter quarters third thirds hundred hundreds dozen not no than never neither squared "
        "cubed infinity"
    ).split()
)
_UNIT = re.compile(r"(?:[A-Za-zµ°²³'’.,()/-]|\s|(?<=[a-zµ])\^\{?[23]\}?|(?<=[a-z])[23]\b)*+")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|rm)\s?\{([^{}]*)\}")
_DROPPED = re.compile(r"(?<!\\)\\[!,;: ]|\\(?:left|right|displaystyle|quad)(?![a-z])|\\\$")
_SCIENTIFIC = re.compile(r"(?<=[0-9])\s?(?:\\times|\\cdot|×)\s?10\s?\^\s?(?:\{(-?[0-9]{1,4})\}|(-?[0-9]{1,4}))")
_DEGREES = re.compile(r"\^\s?(?:\\circ|\{\s?\\circ\s?\})|\\degree")


class Number(NamedTuple):
    """A number as written: `plain` has neither unit, currency nor percent; `quotient` is a whole one written a/b."""

    value: int | Fraction
    percent: bool
    plain: bool
    quotient: bool


def clean(text: str) -> str:
    """Takes off what decorates an answer: dollar signs, bold marks, spacing commands, a final full stop."""
    text = text.replace("−", "-")
    if "\\" in text or "{," in text:
        text = text.replace("{,}", ",").replace("\\%", "%").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
        text = _TEXT_COMMAND.sub(r" \1", text)
        text = _DEGREES.sub("°", _DROPPED.sub("", text))
    if "^" in text:
        text = _SCIENTIFIC.sub(lambda match: f"e{match.group(1) or match.group(2)}", text)
    text = text.strip(" \t\r\n*`_")
    if text.startswith("\\(") and text.endswith("\\)"):
        text = text[2:-2]
    if text.endswith("$"):  # $...$ is mathematics, $... is money
        text = text.strip("$")
    return text.rstrip(".,;: \n").strip()


def read_number(text: str) -> Number | None:
    """`text`, cleaned, as one number; None if it is anything else."""
    if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS:
        return Number(int(text), False, True, False)
    match = _WHOLE.fullmatch(text)
    if match is None or len(text) > 2 * MAX_DIGITS:
        return None
    part = match.groupdict()
    scale, percent, units = _unit(part["unit"])
    if scale is None or (part["sign"] and part["sign2"]):
        return None
    value: int | Fraction
    numerator, denominator = part["num1"] or part["num2"], part["den1"] or part["den2"]
    if numerator is not None:
        if int(denominator) == 0:
            return None
        value = Fraction(int(numerator), int(denominator)) + int(part["mixed"] or 0)
    else:
        integer, decimal = part["integer"], part["decimal"]
        if integer is None and (decimal is None or decimal == "."):
            return None
        exponent = int(part["exponent"] or 0)
        if abs(exponent) > MAX_EXPONENT:
            return None
        whole = (integer or "0").replace(",", "").replace(" ", "")
        value = int(whole) if decimal is None else Fraction(whole + decimal.rstrip("."))
        value *= Fraction(10) ** exponent if exponent else 1
    value *= scale
    if isinstance(value, Fraction) and value.denominator == 1:
        value = value.numerator
    if part["sign"] == "-" or part["sign2"] == "-":
        value = -value
    quotient = numerator is not None and part["mixed"] is None and isinstance(value, int)
    return Number(value, percent, not (units or part["currency"] or percent), quotient)


def only_number(text: str) -> Number | None:
    """The number of a phrase ("She has 5 eggs left"); None if it has none, several, a formula, or a word like "or"."""
    if len(text) > 2 * MAX_DIGITS or re.search(r"[\\=*^+<>|]", text):
        return None
    found = list(NUMBER.finditer(text))
    if len(found) != 1 or text[found[0].end() : found[0].end() + 1].isalpha():
        return None
    if _NOT_UNITS & set(re.findall(r"[a-z]+", text.lower())):
        return None
    number = read_number(clean(found[0].group()))
    return number._replace(plain=False) if number else None


def equal(answer: Number, target: Number, *, tolerance: float, strict: bool) -> bool:
    """Whether the two are the same number.

    Whole numbers exactly; others may differ by `tolerance`, which shrinks in proportion with targets below 0.1. A
    percentage equals its fraction (50% = 0.5); unless `strict`, a percent sign that only one of them has is a unit.
    """
    a = Fraction(answer.value, 100) if answer.percent else answer.value
    b = Fraction(target.value, 100) if target.percent else target.value
    if _close(a, b, tolerance):
        return True
    return not strict and answer.percent != target.percent and _close(answer.value, target.value, tolerance)


def _close(a: int | Fraction, b: int | Fraction, tolerance: float) -> bool:
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    difference, size, allowed = abs(Fraction(a) - Fraction(b)), abs(Fraction(b)), Fraction(tolerance)
    return difference <= (allowed if 10 * size >= 1 else allowed * 10 * size)


def _unit(text: str) -> tuple[int | None, bool, bool]:
    """What follows a number: its scale (None if it is no unit), whether it is percent, whether there is a unit."""
    if not text or text.isspace():
        return 1, False, False
    stripped = text.strip().lower()
    if stripped in ("%", "percent", "per cent", "percentage"):
        return 1, True, False
    if not _UNIT.fullmatch(text):
        return None, False, False
    words = re.findall(r"[a-zµ]+", stripped)
    scale = 1
    if words and words[0] in _SCALES:
        scale = _SCALES[words[0]]
    if _NOT_UNITS & set(words) or re.match(r"[(/.,'-]", stripped):
        return None, False, False
    if len(words) == 1 and len(words[0]) == 1 and not (text[0].isspace() and text.strip()[0] in _ONE_LETTER_UNITS):
        return None, False, False
    return scale, False, True
