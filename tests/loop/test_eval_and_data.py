"""`forge-host eval` on the table model, and `forge-host data show`."""

import json

import pytest

from forge_host.cli.main import main


def test_eval_grades_without_a_trainer(fake_run) -> None:
    evaluation = {"num_prompts": 3, "n_samples": 4, "solved_at": 0.2}
    run = fake_run("--json", command="eval", evaluation=evaluation, report=True)
    assert run.code == 0, run.err
    summary = json.loads(run.out)
    assert summary.pop("report").endswith("report.html")
    assert summary == run.summary and summary["kind"] == "eval" and summary["status"] == "done"
    metrics = summary["metrics"]
    rows = run.rollouts
    sampled = [row for row in rows if "sampled" in row["id"]]
    assert len(rows) == 3 * 4 + 3 and len(sampled) == 12 and not any(row["kept"] for row in rows)
    assert metrics["eval/mean"] == pytest.approx(sum(row["reward"] for row in sampled) / 12)
    solved = {row["prompt_id"]: 0 for row in sampled}
    for row in sampled:
        solved[row["prompt_id"]] += row["reward"] >= 0.2
    assert metrics["eval/pass@4"] == pytest.approx(sum(n > 0 for n in solved.values()) / 3)
    assert metrics["eval/pass@1"] == pytest.approx(sum(solved.values()) / 12)
    assert {"eval/greedy/mean", "eval/ci95", "eval/num_prompts"} <= metrics.keys()
    assert not list((run.dir / "logs").glob("trainer*")), "no trainer ran"
    assert run.dir.name.startswith("fake-eval-")


def test_eval_of_another_model_and_bad_ones(fake_run, tmp_path) -> None:
    missing = fake_run("--model", str(tmp_path / "none"), command="eval")
    assert missing.code == 2 and "model folder" in missing.err and "does not exist" in missing.err
    nothing = fake_run(command="eval", evaluation={"greedy": False, "n_samples": 0})
    assert nothing.code == 2 and "nothing to grade" in nothing.err
    raising = fake_run(command="eval", rewards=[f"{__file__.replace('test_eval_and_data', 'fake_roles')}:raises"])
    assert raising.code == 4 and "responses could not be graded" in raising.err and "ZeroDivisionError" in raising.err


@pytest.fixture
def show(fake_config, capsys):
    def call(*args: str, **sections):
        roles = __file__.replace("test_eval_and_data", "fake_roles")
        code = main(["data", "show", fake_config(**sections), "--plugin-file", roles, "--plugins", "sft,math", *args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_data_show_counts_tokens_and_what_is_left_out(show) -> None:
    code, out, err = show("--json", "-n", "2", dataset={"max_prompt_tokens": 3})
    assert code == 0, err
    report = json.loads(out)
    assert report["tokens"] == {"min": 3, "mean": 3.5, "max": 4, "total": 14}
    assert report["left_out"] == 2 and report["size"] == 4 and report["trained_tokens"] is None
    assert [e["text"] for e in report["examples"]] == ["cab", "bad"]


def test_data_show_grades_the_targets(show, tmp_path) -> None:
    rows = [{"prompt": "cab", "answer": "b"}, {"prompt": "bad", "answer": ""}, {"prompt": "face", "answer": "####"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"path": str(tmp_path / "t.jsonl")}
    code, out, err = show("--grade", "--json", dataset=data, rewards=["math"])
    assert code == 0, err
    targets = json.loads(out)["targets"]
    assert targets["not gradable"] == {"count": 2, "first": ["t.jsonl:2", "t.jsonl:3"], "why": ""}
    assert targets["scored below 1"]["count"] + targets["accepted"]["count"] == 1
    code, out, _ = show("--grade", "-n", "0", dataset=data, rewards=["math"])
    assert code == 0 and "targets not gradable: 2: t.jsonl:2, t.jsonl:3" in out


def test_data_show_marks_what_sft_trains_on(show) -> None:
    code, out, err = show(algorithm="sft/sft", rewards=[])
    assert code == 0, err
    assert "5 tokens, 2 trained on" in out and ">>>b" in out and "8 tokens (36%)" in out


def test_data_show_says_what_is_wrong_with_the_data(show, tmp_path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "cab"}\n')
    code, _, err = show(dataset={"path": str(tmp_path / "bad.jsonl")})
    assert code == 2 and "bad.jsonl:1: no prompt field" in err and "`text`" in err
