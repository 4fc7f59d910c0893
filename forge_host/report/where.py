"""Filters of `forge-host rollouts --where`: a small expression over an episode, never run as Python.

    keep = compile_where("reward/math < 1 and step > 10", known={"step", "reward", "reward/math"})
    keep({"step": 11, "reward/math": 0.5}.get)       # True

Names may hold slashes and, after one, dashes (`reward/my-part`, `policy/kl`). There are and, or, not, comparisons
(also chained), in, + and - and * between numbers, numbers, strings, True, False and None. A value that an episode does
not have is None, which is neither smaller nor larger than anything.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from forge_host.errors import UsageError
from forge_host.plugins.suggest import did_you_mean, listing

Lookup = Callable[[str], Any]
Term = Callable[[Lookup], Any]
MAX_LENGTH = 2000
_WORD = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([A-Za-z_]\w*(?:/[\w.@-]*\w)+)""")
_ORDER = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_MATHS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def compile_where(text: str, known: Collection[str]) -> Callable[[Lookup], bool]:
    """A predicate of a lookup (name -> value or None).

    Raises:
        UsageError: not an expression, something it may not hold, or a name that is not in `known`.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"the expression is longer than {MAX_LENGTH} characters", where="--where")
    names: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        if match.group(1):
            return match.group(1)
        word = f"__name_{len(names)}"
        names[word] = match.group(2)
        return word

    try:
        tree = ast.parse(_WORD.sub(stand_in, text).strip(), mode="eval").body
        term = _term(tree, names, known)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        detail = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"`{text}` is not an expression ({detail})", where="--where",
            fix="write it like 'reward/math<1 and step>10'",
        ) from None  # fmt: skip

    def predicate(lookup: Lookup) -> bool:
        try:
            return bool(term(lookup))
        except TypeError as error:
            raise UsageError(f"`{text}` compares unlike values ({error})", where="--where") from None

    return predicate


def _term(node: ast.expr, names: Mapping[str, str], known: Collection[str]) -> Term:
    def sub(child: ast.expr) -> Term:
        return _term(child, names, known)

    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, (bool, int, float, str)):
            return lambda lookup: value
        case ast.Name(id=identifier):
            name = names.get(identifier, identifier)
            if name not in known:
                fix = did_you_mean(name, known) or f"there are {listing(known)}"
                raise UsageError(f"the rollouts have no `{name}`", where="--where", fix=fix)
            return lambda lookup: lookup(name)
        case ast.BoolOp(op=ast.And(), values=values):
            terms = [sub(v) for v in values]
            return lambda lookup: all(t(lookup) for t in terms)
        case ast.BoolOp(op=ast.Or(), values=values):
            terms = [sub(v) for v in values]
            return lambda lookup: any(t(lookup) for t in terms)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = sub(operand)
            return lambda lookup: not inner(lookup)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = sub(operand)
            return lambda lookup: None if (v := number(lookup)) is None else -v
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _MATHS:
            return _arithmetic(_MATHS[type(op)], sub(left), sub(right))
        case ast.Compare(left=left, ops=ops, comparators=rights):
            terms = [sub(left), *(sub(r) for r in rights)]
            tests = [_test(op) for op in ops]
            return lambda lookup: _chain(tests, [t(lookup) for t in terms])
    raise ValueError(f"{type(node).__name__} is not allowed")


def _arithmetic(function: Callable[[Any, Any], Any], left: Term, right: Term) -> Term:
    def apply(lookup: Lookup) -> Any:
        a, b = left(lookup), right(lookup)
        if a is None or b is None:
            return None
        if isinstance(a, str) or isinstance(b, str):
            raise TypeError("texts are not added or multiplied")
        return function(a, b)

    return apply


def _test(op: ast.cmpop) -> Callable[[Any, Any], bool]:
    if type(op) in _ORDER:
        compare = _ORDER[type(op)]
        return lambda a, b: a is not None and b is not None and bool(compare(a, b))
    if isinstance(op, (ast.Eq, ast.Is)):
        return lambda a, b: bool(a == b)
    if isinstance(op, (ast.NotEq, ast.IsNot)):
        return lambda a, b: bool(a != b)
    if isinstance(op, ast.In):
        return lambda a, b: b is not None and a in b
    return lambda a, b: b is None or a not in b


def _chain(tests: list[Callable[[Any, Any], bool]], values: list[Any]) -> bool:
    return all(test(a, b) for test, a, b in zip(tests, values, values[1:], strict=False))
