"""`mix`: shares at every length, every prompt once an epoch, exact resume, and what is wrong by name."""

import json
from collections import Counter

import pytest

from forge_host.builtin.mix import schedule
from forge_host.errors import UsageError
from forge_host.loop.stream import PromptStream
from forge_host.plugins import PluginHost
from forge_host.types import Use


@pytest.fixture
def mix(tmp_path):
    host = PluginHost.load((), strict=True)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": f"a{i}"}) + "\n" for i in range(30)))

    def build(*parts, **fields):
        given = parts or (str(tmp_path / "a.jsonl"), {"use": "arithmetic", "count": 20})
        return host.build("dataset", Use("mix", {"parts": list(given), **fields}))

    return build


def test_shares_hold_at_every_length() -> None:
    parts, places = schedule([300, 1000, 500], [3, 1, 2], None)
    assert len(parts) == 600, "three sixths of an epoch are the 300 of the first part"
    for length in (6, 60, 600):
        assert Counter(parts[:length]) == {0: length // 2, 1: length // 6, 2: length // 3}
    assert len(set(zip(parts, places, strict=True))) == 600, "no prompt twice"


def test_prompts_are_the_parts_own(mix) -> None:
    dataset = mix(weights=[3, 1])
    prompts = list(dataset)
    assert len(dataset) == 40 and len({p.id for p in prompts}) == 40
    assert Counter(p.metadata["category"].rpartition("/")[2] for p in prompts) == {"a.jsonl": 30, "arithmetic": 10}
    assert len(list(mix(count=100))) == 100
    assert mix().fingerprint() == mix().fingerprint() != mix(weights=[3, 1]).fingerprint()


def test_it_resumes_where_it_was(mix) -> None:
    stream = PromptStream(mix(), seed=3)
    first = [next(stream).id for _ in range(11)]
    again = PromptStream(mix(), seed=3)
    again.load_state_dict(stream.state_dict())
    assert len({*first, *(next(again).id for _ in range(29))}) == 40


@pytest.mark.parametrize(
    ("parts", "fields", "message"),
    [
        (("arithmetic", "arithmetic"), {"weights": [1]}, "2 parts and 1 weights"),
        (("arithmetic", "arithmetic"), {"weights": [1, 0]}, "weights"),
        (("arithmetic",), {}, "parts"),
        (("arithmetic", "no.jsonl"), {}, "no.jsonl: dataset file cannot be read"),
    ],
)
def test_what_is_wrong_is_named(mix, parts, fields, message) -> None:
    with pytest.raises(UsageError, match=message):
        mix(*parts, **fields)
