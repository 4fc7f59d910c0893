"""Tests as data sets write them, made into one of two kinds: standard input and output, or Python that asserts.

    read_cases({"inputs": ["1 2\\n"], "outputs": ["3\\n"]}, None)       # StdioCases
    read_cases({"tests": ["assert add(1, 2) == 3"]}, None)               # AssertCases

Looked for in this order (README has the table): `input_output`, `inputs` with `outputs`, `tests`, `test_list`, `test`;
then the target, as JSON of any of these or as Python that asserts; any other target is none of ours.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs


@attrs.frozen
class StdioCases:
    """Programs are run once for each input; what they print is compared with the output of the same place."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@attrs.frozen
class AssertCases:
    """Python: each unit is one test and passes unless it raises."""

    units: tuple[str, ...]
    setup: str = ""
    entry_point: str | None = None


class CasesError(ValueError):
    """A data set's tests that cannot be read; not the reply's fault."""


def read_cases(metadata: Mapping[str, Any] | None, target: str | None) -> StdioCases | AssertCases | None:
    """The prompt's tests; None when it has none. CasesError naming the field that is wrong."""
    metadata = metadata or {}
    for fields in (metadata, _from_target(target)):
        cases = _from_fields(fields)
        if cases is not None:
            return cases
    return None


def _from_target(target: str | None) -> Mapping[str, Any]:
    if target is None or not target.strip():
        return {}
    try:
        data = json.loads(target)
    except (ValueError, RecursionError):
        return {"test": target} if _can_fail(target) else {}
    if isinstance(data, list):
        return {"tests": data}
    return data if isinstance(data, dict) else {}


def _can_fail(code: str) -> bool:
    """Whether a text is Python that tests something; other texts are targets of another kind."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, (ast.Assert, ast.Raise)) or "assert" in getattr(node, "attr", "") for node in nodes)


def _from_fields(fields: Mapping[str, Any]) -> StdioCases | AssertCases | None:
    entry_point = fields.get("entry_point") or fields.get("fn_name")
    setup = _setup(fields)
    for name in ("input_output", "inputs", "tests", "test_list", "test"):
        value = fields.get(name)
        if value is None or value == "":
            continue
        if name == "inputs":
            return _paired(fields, entry_point)
        if isinstance(value, str):
            value = _maybe_json(value)
        if isinstance(value, Mapping):
            return _from_fields({"entry_point": entry_point, **value})
        if isinstance(value, str):
            if not _can_fail(value):
                raise CasesError(f"field `{name}` of the prompt's metadata is no Python that asserts: {value[:80]!r}")
            return AssertCases((_with_check(value, entry_point),), setup, entry_point)
        if not isinstance(value, Sequence) or not value:
            raise CasesError(f"field `{name}` of the prompt's metadata holds no tests: {value!r:.80}")
        if all(isinstance(item, str) for item in value):
            return AssertCases(tuple(_with_check(item, entry_point) for item in value), setup, entry_point)
        return _from_objects(name, value, setup, entry_point)
    return None


def _paired(fields: Mapping[str, Any], entry_point: str | None) -> StdioCases | AssertCases:
    inputs, outputs = (_maybe_json(fields.get(name)) for name in ("inputs", "outputs"))
    for name, value in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise CasesError(f"field `{name}` of the prompt's metadata is no list of tests: {value!r:.80}")
    if len(inputs) != len(outputs):
        raise CasesError(f"the prompt has {len(inputs)} `inputs` and {len(outputs)} `outputs`")
    if entry_point:
        units = [_call(entry_point, i, o) for i, o in zip(inputs, outputs, strict=True)]
        return AssertCases(tuple(units), _CALL_SETUP, entry_point)
    return StdioCases(tuple(_lines(i) for i in inputs), tuple(_lines(o) for o in outputs))


def _from_objects(name: str, items: Sequence[Any], setup: str, entry_point: str | None) -> StdioCases | AssertCases:
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or "input" not in item or "output" not in item:
            raise CasesError(f"item {number} of `{name}` is neither Python nor an object with `input` and `output`")
    called = [str(item.get("fn_name") or entry_point or "") for item in items]
    if any(called):
        if not all(called):
            raise CasesError(f"some items of `{name}` have `fn_name` and some have none")
        units = [_call(f, item["input"], item["output"]) for f, item in zip(called, items, strict=True)]
        return AssertCases(tuple(units), f"{setup}\n{_CALL_SETUP}", called[0])
    return StdioCases(tuple(_lines(i["input"]) for i in items), tuple(_lines(i["output"]) for i in items))


#: Equality for data that went through JSON, which has no tuples.
_CALL_SETUP = """
def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
"""


def _call(function: str, arguments: Any, expected: Any) -> str:
    """A test that calls `function`, or the method of that name of a class `Solution`, with a list of arguments."""
    if isinstance(arguments, str):  # one argument a line
        arguments = [_value(line) for line in arguments.splitlines() if line.strip()]
    expected = _value(expected)
    if not function.isidentifier():
        raise CasesError(f"`{function}` is not the name of a function")
    if not isinstance(arguments, list):
        raise CasesError(f"the input of a call of `{function}` is no list of arguments: {arguments!r:.80}")
    call = f"(*{arguments!r})"
    return f"""
try: _f = {function}
except NameError: _f = Solution().{function}
_found, _expected = _plain(_f{call}), _plain({expected!r})
assert _found == _expected or _expected == [_found], f"{function} gave {{_found!r:.80}}"
"""


@lru_cache(maxsize=4096)  # the replies to one prompt share its tests
def _with_check(code: str, entry_point: str | None) -> str:
    """HumanEval's form defines `check(candidate)` and leaves the call to the reader."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError) as error:
        raise CasesError(f"the prompt's tests are not Python: {error}") from None
    defines = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body)
    calls = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"
        for top in body
        if not isinstance(top, ast.FunctionDef)
        for node in ast.walk(top)
    )
    if not defines or calls:
        return code
    if not entry_point:
        raise CasesError("the prompt's tests define `check` but there is no `entry_point` to check")
    return f"{code}\ncheck({entry_point})\n"


def _setup(fields: Mapping[str, Any]) -> str:
    parts = []
    for name in ("test_imports", "test_setup_code", "test_setup"):
        value = fields.get(name) or ()
        parts += [value] if isinstance(value, str) else list(value)
    return "\n".join(parts)


def _maybe_json(value: Any) -> Any:
    """The value of a text that is a JSON list or object; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _value(text: Any) -> Any:
    """The value of a text that is JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def _lines(value: Any) -> str:
    """Input or output text; a list is its lines."""
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
