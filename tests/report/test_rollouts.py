"""`forge-host rollouts`: filters that cannot run code, what they select, the page, and the record on disk."""

import gzip
import json

import pytest
from made_runs import episode, healthy

from forge_host.cli.main import main
from forge_host.config.schema import RecordConfig
from forge_host.errors import UsageError
from forge_host.loop.record import RolloutRecord, compress, cut_record, parts
from forge_host.report.rollouts import select
from forge_host.report.rollouts_page import page
from forge_host.report.rundata import load_run, read_rollouts
from forge_host.report.where import compile_where
from forge_host.types import Completion, Episode, Group, Prompt, Verdict

KNOWN = {"step", "reward", "reward/math", "reward/my-part", "reward/math/answered", "response", "kept", "kind", "note"}
ROW = {
    "step": 11, "reward": 0.5, "reward/math": 0.25, "reward/my-part": 1.0, "response": "it is 7", "kept": True,
    "kind": "train", "reward/math/answered": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward/math<1 and step>10", True),
        ("reward/math < 0.2 or step == 11", True),
        ("reward/my-part >= 1", True),
        ("reward/math/answered == 1", True),
        ("not kept", False),
        ("0.2 < reward/math <= 0.25", True),
        ("'7' in response and kind != 'probe'", True),
        ("\"a/b\" in response", False),
        ("kind in ('train', 'probe')", None),
        ("step - 1 == 10", True),
        ("reward > -1", True),
        ("note == None", True),
        ("note < 3", False),
        ("note > 3", False),
        ("note + 1 > 0", False),
    ],
)
def test_expressions(text, expected):
    if expected is None:
        with pytest.raises(UsageError, match="Tuple is not allowed"):
            compile_where(text, KNOWN)
        return
    assert compile_where(text, KNOWN)(ROW.get) is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reward/mth < 1", "no `reward/mth`; did you mean `reward/math`"),
        ("xyzzy", "the rollouts have no `xyzzy`; there are `kept`"),
        ("__name_0 < 1 and reward < 1", "no `__name_0`"),
        ("__import__('os').system('true')", "Call is not allowed"),
        ("response.upper()", "is not allowed"),
        ("response[0] == 'i'", "Subscript is not allowed"),
        ("[x for x in response]", "ListComp is not allowed"),
        ("lambda: 1", "Lambda is not allowed"),
        ("2 ** 99999999 > step", "BinOp is not allowed"),
        ("step <", "is not an expression"),
        ("", "is not an expression"),
        ("step = 3", "is not an expression"),
        ("(" * 300 + "step" + ")" * 300, "is not an expression"),
        ("step>1 or " * 300 + "step", "longer than 2000 characters"),
    ],
)
def test_expressions_refused_in_one_sentence(text, words):
    with pytest.raises(UsageError) as caught:
        compile_where(text, KNOWN)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_unlike_values_are_refused():
    for text in ("response < 3", "response * 9999999 == 'x'", "3 in step"):
        with pytest.raises(UsageError, match="compares unlike values"):
            compile_where(text, KNOWN)(ROW.get)


def test_select_filters_sorts_and_joins_the_step(make_run):
    run = load_run(make_run(metrics=lambda s, n: {**healthy(s, n), "policy/kl": float(s)}))
    found = select(run, where="reward/math<1 and step>10")
    assert found.matched == 10 * 4 and found.total == 160
    assert {row["step"] for row in found.rows} == set(range(11, 21)) and {r["reward"] for r in found.rows} == {0.0}
    assert {row["step"] for row in select(run, where="policy/kl > 18").rows} == {19, 20}
    longest = select(run, sort="-num_tokens", limit=3).rows
    assert [row["num_tokens"] for row in longest] == [11, 11, 11]
    assert [row["id"] for row in select(run, limit=2).rows] == ["20/6", "20/7"], "the newest, in order"
    with pytest.raises(UsageError, match="no `rewrd`; did you mean `reward`"):
        select(run, sort="-rewrd")


def test_command_line(make_run, capsys, tmp_path):
    path = str(make_run())
    assert main(["rollouts", path, "--where", "step==20", "--limit", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("What is") == 3 and "8 of 160 episodes match, 3 shown" in out
    assert main(["rollouts", path, "--where", "step==20", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["step"] for line in lines] == [20] * 8
    assert main(["rollouts", path, "--full", "--limit", "1"]) == 0
    assert "response (5 tokens, stop): it is 7" in capsys.readouterr().out
    assert main(["rollouts", path, "--names"]) == 0
    names = capsys.readouterr().out
    assert "reward/math" in names and "KL divergence from the reference model (of the step)" in names
    assert main(["rollouts", path, "--where", "reward/maths<1"]) == 2
    assert capsys.readouterr().err.startswith("error: --where: the rollouts have no `reward/maths`; did you mean")
    assert main(["rollouts", path, f"--html={tmp_path}/no/x.html"]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert main(["rollouts", path, "--html"]) == 0
    assert "rollouts.html (160 episodes" in capsys.readouterr().out


def test_run_without_rollouts_says_so(make_run):
    with pytest.raises(UsageError, match="has no rollouts"):
        select(load_run(make_run(episodes=0)))


def test_page_holds_ten_thousand_episodes_as_data(make_run):
    path = make_run(steps=20, episodes=500)
    rows = [episode(21, 0, response="</script><script>alert(1)</script>", kept=False, reason="no variance")]
    with (path / "rollouts" / "rollouts.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    run = load_run(path)
    html = page(run, select(run, limit=10_000))
    assert len(html) < 5e6 and html.count("<script") == 2 and html.count("</script>") == 2
    text = html.split('type="application/json">')[1].split("</script>")[0]
    data = json.loads(text)
    assert len(data["rows"]) == 10_000 and data["parts"] == ["math"]
    last = dict(zip(data["columns"], data["rows"][-1], strict=True))
    assert last["response"] == "</script><script>alert(1)</script>" and last["reason"] == "no variance"
    assert "src=" not in html and "http" not in html


def group(step, size=4, text="x" * 200):
    prompt = Prompt(id=f"p{step}", text="?")
    completion = Completion(text=text, token_ids=[1, 2], logprobs=[0.0, -0.5], policy_versions=[3, 4])
    episodes = tuple(
        Episode(id=f"{step}/{i}", prompt=prompt, completion=completion, reward=1.0) for i in range(size)
    )
    return Group(id=f"g{step}", prompt=prompt, episodes=episodes)


def write(folder, steps, **limits):
    record = RolloutRecord(folder, RecordConfig(**limits))
    for step in steps:
        record.write(step, group(step), Verdict(True))
    record.close()


def test_record_rotates_compresses_and_is_read_in_order(tmp_path):
    folder = tmp_path / "rollouts"
    write(folder, range(1, 41), part_mb=0.01)
    found = parts(folder)
    assert len(found) > 3 and all(p.suffix == ".gz" for p in found)
    rows = list(read_rollouts(tmp_path))
    assert [row["id"] for row in rows] == [f"{s}/{i}" for s in range(1, 41) for i in range(4)]
    assert rows[0]["policy_versions"] == [3, 4] and rows[0]["kind"] == "train" and rows[0]["kept"] is True


def test_tokens_are_recorded_when_asked_for(tmp_path):
    write(tmp_path / "rollouts", [1])
    assert not {"token_ids", "prompt_ids", "logprobs"} & set(next(read_rollouts(tmp_path)))
    write(tmp_path / "rollouts", [2], token_ids=True, logprobs=True)
    row = list(read_rollouts(tmp_path))[-1]
    assert row["token_ids"] == [1, 2] and row["logprobs"] == [0.0, -0.5] and row["prompt_ids"] == []


def test_half_a_surrogate_pair_in_a_response_is_recorded(tmp_path):
    record = RolloutRecord(tmp_path / "rollouts")
    record.write(1, group(1, size=1, text="caf\u00e9 \ud83d"), Verdict(True))
    record.close()
    assert [row["response"] for row in read_rollouts(tmp_path)] == ["caf\u00e9 ?"]


def test_cap_keeps_the_first_and_the_newest(tmp_path):
    folder = tmp_path / "rollouts"
    write(folder, range(1, 101), part_mb=0.01, max_mb=0.0005)
    notes = []
    steps = [row["step"] for row in read_rollouts(tmp_path, notes)]
    assert steps[0] == 1 and steps[-1] == 100 and len(set(steps)) < 60
    assert any("parts of the rollout record are missing" in note for note in notes)


def test_resume_cuts_every_part(tmp_path):
    folder = tmp_path / "rollouts"
    write(folder, [*range(1, 31), 12, *range(31, 41)], part_mb=0.01)
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 4, "cut')
    cut_record(folder, 12)
    rows = list(read_rollouts(tmp_path, notes := []))
    assert {row["step"] for row in rows} == set(range(1, 13)) and notes == []
    assert sum(row["step"] == 12 for row in rows) == 8
    write(folder, [13])
    assert [row["step"] for row in read_rollouts(tmp_path)][-4:] == [13] * 4


def test_crash_while_compressing_loses_and_doubles_nothing(tmp_path):
    folder = tmp_path / "rollouts"
    write(folder, range(1, 5))
    part = folder / "rollouts-00001.jsonl"
    (folder / "rollouts.jsonl").rename(part)
    text = part.read_text()
    (folder / "rollouts-00001.jsonl.gz.tmp").write_bytes(b"half")
    assert len(list(read_rollouts(tmp_path))) == 16
    packed = compress(part)
    part.write_text(text)  # killed before the plain part was removed
    assert gzip.open(packed, "rt").read() == text
    assert len(list(read_rollouts(tmp_path))) == 16
    write(folder, [5])
    assert not list(folder.glob("*.tmp"))


def test_damaged_part_is_noted(tmp_path):
    folder = tmp_path / "rollouts"
    write(folder, range(1, 41), part_mb=0.01)
    first = parts(folder)[0]
    first.write_bytes(first.read_bytes()[:60])
    rows = list(read_rollouts(tmp_path, notes := []))
    assert rows and any(first.name in note and "could not be read" in note for note in notes)


def test_one_answer_at_a_time(make_run, capsys):
    assert main(["rollouts", str(make_run()), "--json", "--html"]) == 2
    assert "different answers; choose one" in capsys.readouterr().err
