"""Datasets from folders and files on disk, in every known form, and what is said when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import attrs
import pytest
from forge_plugin_datasets.columns import last_boxed
from forge_plugin_datasets.config import HuggingFace
from forge_plugin_datasets.hf import open_dataset

from forge_host.errors import RunError, UsageError
from forge_host.loop.stream import PromptStream
from forge_host.testing import PluginContract

GSM8K = [{"question": f"{i} + 1?", "answer": f"It is {i + 1}.\n#### {i + 1}"} for i in range(20)]
MATH = [{"problem": "Half of 1?", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "level": "1", "type": "Algebra"}]


class TestPlugin(PluginContract):
    plugin = "datasets"
    configs = {"dataset:hf": {"path": "owner/name"}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def parquet(tmp_path, rows, name: str = "train.parquet") -> str:
    import pyarrow
    from pyarrow.parquet import write_table

    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    write_table(pyarrow.Table.from_pylist(rows), folder / name)
    return str(folder / name)


def opened(path, **options):
    return open_dataset(HuggingFace(path=str(path), **options))


def test_gsm8k_from_a_file_a_folder_a_saved_dataset_and_a_stream(tmp_path) -> None:
    import datasets

    file = parquet(tmp_path, GSM8K)
    datasets.Dataset.from_list(GSM8K).save_to_disk(tmp_path / "saved")
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, GSM8K)))
    for path in (file, tmp_path / "data", tmp_path / "saved", tmp_path / "lines.json"):
        for streaming in (False, True):
            found = list(opened(path, streaming=streaming))
            assert [p.target for p in found] == [str(i + 1) for i in range(20)]
            assert found[3].text == "3 + 1?" and found[3].metadata["response"] == GSM8K[3]["answer"]
    assert len({p.id for p in found}) == 20 and hasattr(opened(file), "__len__")
    assert not hasattr(opened(file, streaming=True), "__len__")


def test_math_categories_and_nested_boxes(tmp_path) -> None:
    (prompt,) = opened(parquet(tmp_path, MATH))
    assert prompt.target == "\\frac{1}{2}" and prompt.metadata["category"] == "Algebra"
    assert last_boxed("\\boxed{1} and \\boxed{a{b}c}") == "a{b}c"
    assert last_boxed("\\boxed{open") is None and last_boxed("none") is None


def test_chats_and_instructions(tmp_path) -> None:
    chat = [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]
    (prompt,) = opened(parquet(tmp_path, chat))
    assert [m["role"] for m in prompt.messages] == ["user", "assistant"]
    (prompt,) = opened(parquet(tmp_path, [{"instruction": "Add.", "input": "1, 1", "output": "2"}]))
    assert prompt.text == "Add.\n\n1, 1" and prompt.metadata["output"] == "2" and prompt.target is None


def test_columns_splits_limits_and_templates(tmp_path) -> None:
    rows = [{"q": f"{i}?", "a": i, "kind": "even" if i % 2 == 0 else "odd"} for i in range(10)]
    file = parquet(tmp_path, rows)
    named = {"prompt_field": "q", "target_field": "a", "category_field": "kind"}
    found = list(opened(file, split="train[80%:]", template="Answer: {prompt}", **named))
    assert [(p.text, p.target) for p in found] == [("Answer: 8?", "8"), ("Answer: 9?", "9")]
    assert found[1].metadata["category"] == "odd" and len(opened(file, limit=3, **named)) == 3
    assert len(list(opened(file, limit=3, streaming=True, **named))) == 3


@pytest.mark.parametrize("streaming", [False, True])
def test_held_out_by_hash_and_duplicates(tmp_path, streaming) -> None:
    rows = [{"question": f"{i % 100}?", "answer": str(i)} for i in range(300)]
    path = parquet(tmp_path, rows)
    parts = {}
    for held_out in (False, True):
        dataset = opened(path, holdout=0.2, held_out=held_out, deduplicate=True, streaming=streaming)
        parts[held_out] = list(dataset)
        assert sum(dataset.dropped.values()) == 300 - len(parts[held_out]) and dataset.dropped["duplicate"]
    questions = {part: {p.text for p in prompts} for part, prompts in parts.items()}
    assert questions[False].isdisjoint(questions[True]) and len(questions[False] | questions[True]) == 100
    assert 8 < len(parts[True]) < 35 and len(parts[True]) == len(questions[True])
    limited = opened(path, holdout=0.2, deduplicate=True, streaming=streaming, limit=3)
    assert [p.id for p in limited] == [p.id for p in parts[False]][:3]
    assert [p.id for p in limited] == [p.id for p in limited]
    with pytest.raises(UsageError, match="held_out has no prompts with holdout 0"):
        opened(path, held_out=True)


def test_a_stream_of_it_resumes_and_other_data_is_refused(tmp_path) -> None:
    file = parquet(tmp_path, GSM8K)
    for streaming in (False, True):
        stream = PromptStream(opened(file, streaming=streaming), seed=1)
        first = [next(stream).id for _ in range(7)]
        again = PromptStream(opened(file, streaming=streaming), seed=1)
        again.load_state_dict(stream.state_dict())
        rest = [next(again).id for _ in range(13)]
        assert len({*first, *rest}) == 20
    other = PromptStream(opened(parquet(tmp_path, GSM8K[1:], "other.parquet")), seed=1)
    with pytest.raises(UsageError, match="the data changed since the checkpoint"):
        other.load_state_dict(PromptStream(opened(file), seed=1).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_field": "q"}, r"dataset.prompt_field is `q`; the columns are `text`, `level`"),
        ({}, r"no prompt column .*; the columns are `text`, `level`; set dataset.prompt_field"),
        ({"split": "test"}, r'Unknown split "test".*set dataset.split'),
        ({"split": "train[:x]"}, r"Unrecognized instruction format: .*; write dataset.split as in train"),
        ({"prompt_field": "level"}, r"column `level` is int, not text or messages"),
        ({"template": "x"}, r"template 'x' has no \{prompt\}"),
    ],
)
def test_wrong_columns_and_splits_are_named(tmp_path, options, message) -> None:
    file = parquet(tmp_path, [{"text": "x", "level": 1}])
    with pytest.raises(UsageError, match=message):
        list(opened(file, **options))


def test_csv_and_compressed_files(tmp_path) -> None:
    import gzip

    (tmp_path / "a.csv").write_text("question,answer\n1+1?,2\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"question": "1+1?", "answer": "2"}\n'))
    for name in ("a.csv", "a.jsonl.gz"):
        assert [(p.text, p.target) for p in opened(tmp_path / name)] == [("1+1?", "2")]
    (tmp_path / "a.txt").write_text("1+1?\n")
    with pytest.raises(UsageError, match=r"a\.txt: the file is of a kind that nothing reads; known are \.parquet"):
        opened(tmp_path / "a.txt")


def test_damaged_and_empty_files(tmp_path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"question": pyarrow.array([], pyarrow.string())}), tmp_path / "columns.parquet")
    (tmp_path / "header.csv").write_text("question,answer\n")
    for name, streaming in product(("columns.parquet", "header.csv"), (False, True)):
        with pytest.raises(UsageError, match=f"{name}: dataset is empty: split train has no rows; name another"):
            opened(tmp_path / name, streaming=streaming)
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(UsageError, match="bad.parquet: "):
        opened(tmp_path / "bad.parquet")
    import datasets

    datasets.DatasetDict({"train": datasets.Dataset.from_list(GSM8K)}).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match="there is no split `test`; the splits are train"):
        opened(tmp_path / "saved", split="test")


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError("slow"), OSError("no route")])
def test_an_unreachable_hub_says_how_to_use_a_local_copy(monkeypatch, error) -> None:
    import datasets

    def fail(**_):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(RunError, match=r"`owner/name` .* hub cannot be reached .*hf download .*dataset.path: DIR"):
        opened("owner/name")


def test_a_stream_that_breaks_off_is_explained(tmp_path) -> None:
    class Broken:
        def __iter__(self):
            yield GSM8K[0]
            raise ConnectionError("reset by peer")

    stream = attrs.evolve(opened(parquet(tmp_path, GSM8K), streaming=True), rows=Broken())
    with pytest.raises(RunError, match="hub cannot be reached .*reset by peer"):
        list(attrs.evolve(stream, config=HuggingFace(path="owner/name", streaming=True)))


def test_offline_through_the_command_line(tmp_path) -> None:
    (tmp_path / "c.yaml").write_text("model: owner/model\ndataset: owner/name\n")
    command = [sys.executable, "-m", "forge_host.cli.main", "data", "show", str(tmp_path / "c.yaml")]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 4 and "hub cannot be reached" in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
