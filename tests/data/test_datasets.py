"""The built-in datasets: what they yield, how they split, and what they say about bad files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from forge_host.api import Dataset, UsageError
from forge_host.builtin.arithmetic import Arithmetic
from forge_host.builtin.jsonl import JsonLines
from forge_host.builtin.split import held_out

GSM8K = Path(os.environ.get("FORGE_HOST_GSM8K") or Path(__file__).parents[2] / "../shared/data/gsm8k")


def write(path: Path, *records: Any) -> str:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return str(path)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def test_arithmetic_answers_are_exact() -> None:
    dataset = Arithmetic(low=-999, high=999, operations=("+", "-", "*"), count=500)
    assert isinstance(dataset, Dataset)
    seen = set()
    for prompt in dataset:
        a, b, op = (prompt.metadata[k] for k in ("a", "b", "op"))
        assert -999 <= a <= 999 and -999 <= b <= 999
        assert prompt.target == str({"+": a + b, "-": a - b, "*": a * b}[op])
        assert prompt.text == f"What is {a} {op} {b}?"
        seen.add(op)
    assert seen == {"+", "-", "*"}


def test_arithmetic_is_the_same_everywhere() -> None:
    first = Arithmetic(count=50, seed=3)
    assert [first[i] for i in (7, 3)] == [list(Arithmetic(count=50, seed=3))[i] for i in (7, 3)]
    assert list(first) != list(Arithmetic(count=50, seed=4))
    assert first.fingerprint() != Arithmetic(count=50, seed=4).fingerprint()
    assert len({prompt.id for prompt in first}) == 50
    assert first[0].text == "What is 9 + 2?"  # pinned: each release draws the same


def test_arithmetic_sides_share_no_question() -> None:
    datasets = [Arithmetic(split=split, holdout=0.2, count=2000) for split in ("train", "test")]
    sides = [{p.text for p in dataset} for dataset in datasets]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 81 and 5 <= len(sides[1]) <= 30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 5, "high": 4}, "low 5 is above high 4"),
        ({"template": "What is {x}?"}, "cannot be filled in"),
        ({"split": "test"}, "set holdout"),
    ],
)
def test_arithmetic_refuses(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Arithmetic(**fields)


def test_arithmetic_without_any_question_of_the_split() -> None:
    side = "train" if held_out("1+1", 0.5) else "test"
    with pytest.raises(UsageError, match=f"no question of 1..1 falls into split {side}"):
        Arithmetic(low=1, high=1, split=side, holdout=0.5)[0]


# --- jsonl ----------------------------------------------------------------------------------------------------------


def test_jsonl_fields_are_found(tmp_path: Path) -> None:
    lines = {"question": "1+1?", "answer": "so #### 2", "level": 3}, "", {"question": "2+2?", "answer": 4}
    path = write(tmp_path / "a.jsonl", *lines)
    dataset = JsonLines(path=path)
    assert isinstance(dataset, Dataset) and len(dataset) == 2
    first, second = dataset
    assert (first.text, first.messages) == ("1+1?", None)
    assert (first.id, first.target, first.metadata) == ("a.jsonl:1", "so #### 2", {"level": 3})
    assert (second.id, second.target) == ("a.jsonl:3", "4")
    assert dataset[1] == second
    with pytest.raises(IndexError):
        dataset[2]


def test_jsonl_messages_template_and_plain_text(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (prompt,) = JsonLines(path=write(tmp_path / "m.jsonl", {"messages": chat}))
    assert prompt.messages == tuple(chat) and prompt.target is None
    path = write(tmp_path / "p.jsonl", {"prompt": r"\frac{1}{2}", "solution": "x", "other": "y"})
    (prompt,) = JsonLines(path=path, template="Q: {prompt} {A}", target_field="other")
    assert prompt.text == r"Q: \frac{1}{2} {A}" and prompt.target == "y"


def test_jsonl_split_limit_and_duplicates(tmp_path: Path) -> None:
    records = [{"prompt": f"q{i % 150}", "target": "t"} for i in range(300)]
    path = write(tmp_path / "d.jsonl", *records)
    train, test = JsonLines(path=path, holdout=0.3), JsonLines(path=path, holdout=0.3, split="test")
    texts = [{p.text for p in d} for d in (train, test)]
    assert not texts[0] & texts[1] and len(train) + len(test) == 300
    assert 20 <= len(texts[1]) <= 70
    assert train.dropped["other split"] == len(test)
    unique = JsonLines(path=path, deduplicate=True)
    assert len(unique) == 150 and unique.dropped["duplicate"] == 150
    assert len(JsonLines(path=path, limit=7)) == 7
    assert list(JsonLines(path=path, streaming=False)) == list(JsonLines(path=path))


def test_jsonl_fingerprint_follows_content_and_settings(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", {"prompt": "a"})
    same = write(tmp_path / "2.jsonl", {"prompt": "a"})
    other = write(tmp_path / "3.jsonl", {"prompt": "b"})
    assert JsonLines(path=one).fingerprint() == JsonLines(path=same).fingerprint()
    different = JsonLines(path=one), JsonLines(path=other), JsonLines(path=one, template="{prompt}!")
    assert len({dataset.fingerprint() for dataset in different}) == 3


def test_jsonl_pickles(tmp_path: Path) -> None:
    dataset = JsonLines(path=write(tmp_path / "a.jsonl", {"prompt": "a"}))
    assert list(dataset) == list(pickle.loads(pickle.dumps(dataset)))


GOOD = {"prompt": "a", "target": "b"}


@pytest.mark.parametrize(
    ("lines", "fields", "message"),
    [
        ([GOOD, '{"prompt": "a",'], {}, r"d\.jsonl:2: line is not JSON \(.*, column \d+\); correct or remove the line"),
        (['["a",'], {}, r"d\.jsonl:1: line is not JSON .*; write one whole JSON object on each line; .* named \.json"),
        ([r'{"prompt": "\ud800?"}'], {}, r":1: line has the lone surrogate '\\ud800'.*; correct"),
        (['{"prompt": "a", "target": ' + "9" * 5000 + "}"], {}, r":1: line has a number that is too long .*; correct"),
        (['{"prompt": "a", "target": NaN}'], {}, r":1: field `target` is nan, not text or a number; .* target_field"),
        ([{"prompt": [{"role": ["a"], "content": "b"}]}], {}, r":1: field `prompt` holds a message with the role"),
        ([GOOD, "[1]"], {}, r"d\.jsonl:2: line is a list, not a JSON object"),
        ([GOOD, {"prompt": "c", "goal": 1}], {}, r":2: field `target` is missing; the line has `prompt`, `goal`"),
        ([GOOD], {"target_field": "answer"}, r"d\.jsonl:1: field `answer` is missing; the line has `prompt`, `target`"),
        ([{"text": "a"}], {}, r":1: no prompt field \(none of .*\); the line has `text`; set dataset\.prompt_field"),
        ([{"prompt": ""}], {}, r"field `prompt` is empty"),
        ([{"prompt": 5}], {}, r"field `prompt` is a number, not text or messages"),
        ([{"prompt": [{"text": "a"}]}], {}, r"d\.jsonl:1: field `prompt` holds a message with the role"),
        ([{"prompt": "a", "target": ["b"]}], {}, r"field `target` is a list"),
        ([], {}, r"dataset is empty: it has no prompts"),
        (["", " "], {}, r"dataset is empty"),
        ([GOOD], {"holdout": 1e-9, "split": "test"}, r"none of its 1 prompts falls into split test"),
        (["[" * 100_000], {}, r"d\.jsonl:1: line is nested too deeply"),
    ],
)
def test_jsonl_bad_input(tmp_path: Path, lines: list[Any], fields: dict[str, Any], message: str) -> None:
    dataset = JsonLines(path=write(tmp_path / "d.jsonl", *lines), **fields)
    with pytest.raises(UsageError, match=message) as caught:
        list(dataset)
    assert str(tmp_path / "d.jsonl") in str(caught.value)


def test_jsonl_file_is_missing_or_binary(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        len(JsonLines(path=str(tmp_path / "none.jsonl")))
    (tmp_path / "b.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(UsageError, match=r"b\.jsonl:2: line is not UTF-8 \(byte 13\); rewrite the file"):
        len(JsonLines(path=str(tmp_path / "b.jsonl")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"{}", mtime=0), r"f\.jsonl: dataset file is compressed by gzip.*; name it \.jsonl\.gz"),
        ('{"prompt": "a"}'.encode("utf-16"), r"f\.jsonl: dataset file is UTF-16 text, .*; rewrite it: iconv"),
        (b"PK\x03\x04...", r"f\.jsonl: dataset file is a zip archive"),
    ],
)
def test_jsonl_says_what_another_kind_of_file_is(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "f.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        len(JsonLines(path=str(tmp_path / "f.jsonl")))


def test_jsonl_of_other_systems_and_sharegpt(tmp_path: Path) -> None:
    lines = b'{"prompt": "\\ud83d\\ude00", "target": "b"}\r\n', b'{"prompt": "c", "target": 1}\r\n'
    (tmp_path / "w.jsonl").write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    assert [(p.text, p.target) for p in JsonLines(path=str(tmp_path / "w.jsonl"))] == [("\U0001f600", "b"), ("c", "1")]
    chat = {"conversations": [{"from": "human", "value": "a"}], "answer": "b"}
    (prompt,) = JsonLines(path=write(tmp_path / "s.jsonl", chat))
    assert prompt.messages == ({"role": "user", "content": "a"},) and prompt.target == "b"


@pytest.mark.skipif(not (GSM8K / "train.jsonl").is_file(), reason="set FORGE_HOST_GSM8K to GSM8K's folder")
def test_gsm8k() -> None:
    train, test = JsonLines(path=str(GSM8K / "train.jsonl")), JsonLines(path=str(GSM8K / "test.jsonl"))
    assert (len(train), len(test)) == (7473, 1319)
    assert all("####" in (prompt.target or "") for prompt in test)
