"""Evaluates what a model types into a calculator: numbers, + - * / ** %, brackets. Nothing else, and nothing slow.

    calculate("$1,200 * 3")      # "3600"
    calculate("2 / 0")           # raises CalculatorError("division by zero")
"""

from __future__ import annotations

import ast
import operator
from fractions import Fraction

MAX_LENGTH = 200  # characters
MAX_BITS = 512  # of numerator and denominator
MAX_EXPONENT = 64
BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class CalculatorError(ValueError):
    """What the calculator shows instead of a result."""


def calculate(text: str) -> str:
    """The result as people write it: "9", "0.5", "3.333333"."""
    cleaned = text.strip().rstrip("=").replace(",", "").replace("$", "").replace("×", "*").replace("÷", "/")
    cleaned = cleaned.replace("^", "**").strip()
    if not cleaned:
        raise CalculatorError("nothing to compute")
    if len(cleaned) > MAX_LENGTH:
        raise CalculatorError(f"more than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(cleaned, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CalculatorError("not an expression") from error
    return shown(_value(tree.body))


def shown(value: Fraction) -> str:
    """A whole number as it is, others to six decimals without final zeros."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if node.value == float("inf"):
            raise CalculatorError("the number is too long")
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if right.denominator != 1 or abs(right) > MAX_EXPONENT:
                raise CalculatorError("powers are whole and at most 64")
            if left == 0 and right < 0:
                raise CalculatorError("division by zero")
            return _bounded(left ** int(right))
        function = BINARY.get(type(node.op))
        if function is not None:
            if right == 0 and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
                raise CalculatorError("division by zero")
            return _bounded(Fraction(function(left, right)))
    raise CalculatorError("only numbers, + - * / ** % and brackets")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError("the number is too long")
    return value
