"""The forms tests come in, calls across the sandboxes, and what a verdict is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forge_plugin_code.cases import AssertCases, CasesError, read_cases
from forge_plugin_code.compare import same_output
from forge_plugin_code.extract import find_code
from forge_plugin_code.isolation import Settings, choose
from forge_plugin_code.reward import CodeReward

from forge_host.api import PluginError, RewardResult
from forge_host.testing import PluginContract, RewardContract

ADD = "def add(a, b):\n    return a + b"
ADD_TESTS = json.dumps({"tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]})


@pytest.fixture
def works() -> None:
    """Skips where this machine has no isolation, with its reason."""
    try:
        choose(Settings())
    except PluginError as error:
        pytest.skip(str(error))


@pytest.fixture
def grade(isolation: str) -> Callable[..., RewardResult]:
    def call(
        code: str, metadata: dict[str, Any] | None = None, target: str | None = None, **config: Any
    ) -> RewardResult:
        reward = CodeReward(isolation=isolation, **{"timeout_s": 8.0, "total_s": 30.0, "workers": 1, **config})
        result = reward(response=f"```python\n{code}\n```", metadata=metadata, target=target)
        assert result is not None
        return result

    return call


class TestPlugin(PluginContract):
    plugin = "code"


@pytest.mark.usefixtures("works")
class TestReward(RewardContract):
    reward = "code"
    config = {"wait_s": 20.0, "total_s": 20.0, "timeout_s": 10.0}
    prompt = "Write add(a, b)."
    accept = [(f"Here:\n```python\n{ADD}\n```\n", ADD_TESTS), (f"<think>hm</think>```py\n{ADD}\n```", ADD_TESTS)]
    reject = [
        (ADD, ADD_TESTS),
        ("```python\ndef add(a, b): return 3\n```", ADD_TESTS),
        (f"```python\n{ADD}\n```\n```python\nno\n```", ADD_TESTS),
        ("", ADD_TESTS),
    ]


# --- forms of tests -------------------------------------------------------------------------------------------------

SQUARE = "def f(x):\n    return x * x"
ECHO = "print(int(input()) ** 2)"
SOLUTION = "class Solution:\n    def f(self, x): return x * x"
ISCLOSE = "from math import isclose"
CHECK = "def check(candidate):\n    for i in range(5):\n        assert candidate(i) == i * i"
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "inputs and outputs": (ECHO, "print(1)", {"inputs": ["3", "4\n"], "outputs": ["9\n", "16"]}),
    "lists of lines": (ECHO, "print(1)", {"inputs": [["3"]], "outputs": [["9"]]}),
    "objects": (ECHO, "print(1)", {"tests": [{"input": "3\n", "output": "9\n", "type": "stdin_stdout"}]}),
    "apps": (ECHO, "print(1)", {"input_output": json.dumps({"inputs": ["3"], "outputs": ["9"]})}),
    "apps, called": (SQUARE, "def f(x): return 1", {"inputs": [[3]], "outputs": [[9]], "fn_name": "f"}),
    "called, a class": (SOLUTION, "def f(x): return 1", {"inputs": ["3"], "outputs": ["9"], "fn_name": "f"}),
    "called objects": (
        SQUARE, "def f(x): return 1", {"tests": [{"type": "function_call", "fn_name": "f", "input": [3], "output": 9}]},
    ),
    "asserts": (SQUARE, "def f(x): return 9", {"tests": ["assert f(3) == 9", "assert f(2) == 4"]}),
    "mbpp": (
        SQUARE, "def f(x): return 1", {"test_list": ["assert isclose(f(3), 9)"], "test_setup_code": ISCLOSE},
    ),
    "humaneval": (
        SQUARE, "def f(x): return 1",
        {"test": CHECK, "entry_point": "f"},
    ),
    "unittest": (
        SQUARE, "def f(x): return 1",
        {"test": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(3), 9)"},
    ),
    "pytest": (SQUARE, "def f(x): return 1", {"test": "from solution import f\ndef test_a():\n    assert f(3) == 9"}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_form_of_tests(grade: Callable[..., RewardResult], form: str) -> None:
    right, wrong, metadata = FORMS[form]
    assert grade(right, metadata).value == 1.0, grade(right, metadata).note
    assert grade(wrong, metadata).value == 0.0
    assert grade("x = 1", metadata).value == 0.0
    assert grade(right, None, target=json.dumps(metadata)).value == 1.0


CALLS: dict[str, tuple[str, str]] = {
    "several values": ("def f(): return (1, 2.5, 'a', b'b', None, {1, 2}, {'k': [1j]})",
                       "assert f() == (1, 2.5, 'a', b'b', None, {1, 2}, {'k': [1j]}) and type(f()) is tuple"),
    "an argument is changed": ("def f(a): a.sort()", "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"),
    "an object": ("class Stack:\n def __init__(self): self.a = []\n def push(self, x): self.a.append(x)\n"
                  " def pop(self): return self.a.pop()\n def __len__(self): return len(self.a)",
                  "s = Stack()\ns.push(4)\nassert len(s) == 1 and s.a == [4] and s.pop() == 4 and not s\n"
                  "assert isinstance(s, Stack) and hasattr(s, 'push')"),
    "objects that compare": ("from dataclasses import dataclass\n"
                             "@dataclass(order=True, frozen=True)\nclass P:\n x: int\n"
                             " def __add__(self, o): return P(self.x + o.x)",
                             "assert P(1) + P(2) == P(3) and P(1) < P(2) and P(1) != P(2) and len({P(1), P(1)}) == 1"),
    "a generator": ("def f(n):\n for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2] and next(f(1)) == 0"),
    "a function given": ("def f(g, xs): return [g(x) for x in xs]", "assert f(lambda x: x + 1, [1, 2]) == [2, 3]"),
    "a function as result": ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
    "an exception": ("def f(x):\n if x < 0: raise ValueError('negative')",
                     "try: f(-1)\nexcept ValueError as e: assert 'negative' in str(e)\nelse: assert False"),
    "its own exception": ("class Odd(KeyError): pass\ndef f(x): raise Odd(x)",
                          "try: f(-1)\nexcept Odd: pass\nelse: assert False"),
    "a library it imported": ("import math\ndef f(): return 1/3", "assert math.isclose(f(), 0.3333333333333333)"),
    "a fraction": ("from fractions import Fraction\ndef f(): return Fraction(1, 3)",
                   "from fractions import Fraction\nassert f() == Fraction(1, 3)"),
    "a big number": ("def f(): return 7 ** 9000", "assert f() == 7 ** 9000"),
    "a constant": ("LIMIT = 5", "assert LIMIT == 5"),
    "named arguments": ("def f(*, a, b=2): return a - b", "assert f(a=5) == 3 and f(b=1, a=1) == 0"),
    "a named tuple": ("from collections import namedtuple, Counter\nP = namedtuple('P', 'x y')\n"
                      "def f(): return P(1, 2)\n"
                      "def g(): return Counter('aab')", "assert f() == (1, 2) and g() == {'a': 2, 'b': 1}"),
    "prints on the way": ("def f():\n print('hello')\n return 1", "assert f() == 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_across_the_sandboxes(grade: Callable[..., RewardResult], name: str) -> None:
    code, test = CALLS[name]
    result = grade(code, {"tests": [test]})
    assert result.value == 1.0, result.note


def test_partial_credit_is_the_share(grade: Callable[..., RewardResult]) -> None:
    metadata = {"inputs": ["1", "2", "3", "4"], "outputs": ["1", "2", "3", "5"]}
    assert grade("print(input())", metadata).value == 0.0
    assert grade("print(input())", metadata, partial_credit=True).value == 0.75
    tests = {"tests": ["assert f(1) == 1", "assert f(2) == 3", "assert f(3) == 3", "assert g()"]}
    result = grade("def f(x): return x", tests, partial_credit=True)
    assert (result.value, result.parts["passed"]) == (0.5, 0.5)
    assert "f(2) == 3" in result.note


def test_threads_and_files_work(grade: Callable[..., RewardResult]) -> None:
    code = """
import sys, threading, collections, tempfile
sys.setrecursionlimit(10**6); threading.stack_size(64 << 20)
def deep(n): return n and 1 + deep(n - 1)
def main():
    with tempfile.NamedTemporaryFile("w+") as f: f.write("x"); f.seek(0); assert f.read() == "x"
    print(deep(20000), *(sys.stdin.read().split()))
threading.Thread(target=main).start()
"""
    result = grade(code, {"inputs": ["a\nb"], "outputs": ["20000 a b"]})
    assert result.value == 1.0, result.note


def test_verdicts_do_not_vary(grade: Callable[..., RewardResult]) -> None:
    """Hashing is seeded the same everywhere, so a program that prints a set prints the same each time."""
    assert len({grade("print({'a', 'b', 'c', 'd'})", {"inputs": [""], "outputs": ["?"]}).note for _ in range(6)}) == 1


def test_packages_can_be_allowed(grade: Callable[..., RewardResult], tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "allowed_pkg.py").write_text("value = 7")
    metadata = {"tests": ["import allowed_pkg\nassert f() == allowed_pkg.value"]}
    code = "import allowed_pkg\ndef f(): return allowed_pkg.value"
    assert grade(code, metadata, packages=(str(folder),)).value == 1.0
    assert grade(code, {"tests": ["assert f() == 7"]}).value == 0.0
    with pytest.raises(CasesError, match="allowed_pkg"):
        grade("def f(): return 7", metadata)


# --- tests that are wrong themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata, says",
    [
        ({"inputs": ["1"], "outputs": []}, "`outputs`"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 `inputs` and 1 `outputs`"),
        ({"tests": [{"in": 1}]}, "item 0 of `tests`"),
        ({"tests": []}, "`tests`"),
        ({"test_list": ["assert f(1) =="]}, "not Python"),
        ({"test": "def check(candidate): assert candidate(1)"}, "entry_point"),
        ({"test": "x = 1"}, "asserts"),
        ({"inputs": [{"x": 1}], "outputs": ["1"], "fn_name": "f"}, "list of arguments"),
        ({"inputs": [[1]], "outputs": ["1"], "fn_name": "os.system('x')"}, "name of a function"),
    ],
)
def test_bad_tests_raise(metadata: dict[str, Any], says: str) -> None:
    with pytest.raises(CasesError, match=says.replace("(", r"\(")):
        read_cases(metadata, None)


@pytest.mark.parametrize("setup, says", [("1 / 0", "ZeroDivisionError"), ("import no_such_pkg", "no_such_pkg")])
def test_failing_setup_is_no_verdict(grade: Callable[..., RewardResult], setup: str, says: str) -> None:
    with pytest.raises(CasesError, match=says):
        grade("def f(): return 1", {"test_list": ["assert f() == 1"], "test_setup": setup})


@pytest.mark.parametrize("target", [None, "", "19", "some text", '"text"', "[1"])
def test_other_targets_are_not_graded(target: str | None) -> None:
    assert read_cases({}, target) is None
    assert CodeReward()(response="```\nprint(1)\n```", target=target) is None


def test_a_target_may_be_python() -> None:
    assert read_cases(None, "assert f(1) == 1") == AssertCases(("assert f(1) == 1",))


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response, where, code",
    [
        ("```python\na\n```\ntext\n```py\nb\n```", "fence", "b\n"),
        ("```\na\n```", "fence", "a\n"),
        ("```bash\na\n```", "fence", None),
        ("```python\na", "fence", None),
        ("````python\n```\na\n````", "fence", "```\na\n"),
        ("  ```Python3\n  a\n  ```", "fence", "  a\n"),
        ("<think>```python\na\n```</think>b", "fence", None),
        ("a", "whole", "a"),
        ("a", "either", "a"),
        ("a\n```\nb\n```", "either", "b\n"),
        (" ", "whole", None),
    ],
)
def test_find_code(response: str, where: str, code: str | None) -> None:
    assert find_code(response, where) == code


@pytest.mark.parametrize(
    "found, expected, how, same",
    [
        ("1\n", "1", "lines", True),
        ("1 \n2\n\n", "1\n2", "lines", True),
        ("1 2", "1\n2", "lines", False),
        (" 1", "1", "lines", False),
        ("1 2", "1\n2\n", "tokens", True),
        ("0.3333333", "0.33333333", "tokens", True),
        ("0.34", "0.33", "tokens", False),
        ("nan", "1", "tokens", False),
        ("1e999", "5", "tokens", False),
        ("YES", "yes", "tokens", False),
        ("1\n", "1", "exact", False),
    ],
)
def test_same_output(found: str, expected: str, how: str, same: bool) -> None:
    assert same_output(found, expected, how, 1e-6) is same
