"""SFT on the table model: whole runs through the command line, and what an example becomes."""

import json
import math

import pytest

SFT = {
    "algorithm": "sft/sft",
    "trainer": {"learning_rate": 4.0},
    "evaluation": {"interval": 2, "num_prompts": 4},
}


@pytest.fixture
def sft(fake_run, tmp_path):
    """`forge-host sft` without rewards or a generator in the configuration."""

    def run(*args: str, **sections):
        given = {**SFT, "rewards": [], "training": {"max_steps": 6, "verify_weight_sync": False}, **sections}
        return fake_run("--plugins", "sft", *args, command="sft", **given)

    return run


def test_sft_learns_the_responses_and_leaves_its_record(sft) -> None:
    run = sft()
    assert run.code == 0, run.err
    metrics = [m["metrics"] for m in run.metrics]
    assert [m["step"] for m in run.metrics] == list(range(1, 7))
    # 16 letters: a uniform guess costs ln 16 nats a token. Every response is "b" and the end.
    assert metrics[0]["train/loss"] == pytest.approx(math.log(16), abs=0.5)
    losses = [m["train/loss"] for m in metrics]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 1
    held_out = [m["eval/loss"] for m in metrics if "eval/loss" in m]
    assert len(held_out) == 3 and held_out == sorted(held_out, reverse=True)
    assert metrics[0]["tokens/packed"] == 4 * 2 + sum(len(w) for w in ("cab", "bad", "face", "deaf"))
    assert metrics[-1]["data/epoch"] == 5.0, "four examples are one batch"
    summary = run.summary
    assert summary["kind"] == "sft" and summary["status"] == "done" and (run.dir / "model").is_dir()
    assert summary["eval_loss_last"] < summary["eval_loss_first"]
    assert {p.name.partition("-")[0] for p in (run.dir / "logs").glob("*.log")} == {"trainer"}, "nothing else ran"
    assert "held-out loss" in run.out


def test_a_resumed_run_is_the_run_that_was_not_interrupted(sft, tmp_path) -> None:
    prompts = tmp_path / "many.jsonl"
    words = [a + b for a in "abcd" for b in "efgh"]
    prompts.write_text("".join(json.dumps({"prompt": w, "answer": w[1]}) + "\n" for w in words))
    data = {"dataset": {"path": str(prompts)}, "checkpoint": {"interval": 2}}
    whole = sft(**data)
    assert whole.code == 0, whole.err
    first = sft("--set", "training.max_steps=4", **data)
    assert first.code == 0, first.err
    again = sft("--resume", str(first.dir), "--set", "training.max_steps=6", **data)
    assert again.code == 0, again.err
    assert [m["step"] for m in again.metrics] == list(range(1, 7))
    same = [[m["metrics"]["train/loss"] for m in run.metrics] for run in (whole, again)]
    assert same[0] == same[1] and len(set(same[0])) == 6
    assert again.summary["eval_loss_first"] == whole.summary["eval_loss_first"] is not None


def test_commands_refuse_each_others_algorithms(fake_run, sft) -> None:
    wrong = fake_run(command="sft")
    assert wrong.code == 2 and "trains on responses that it generates" in wrong.err
    wrong = sft(evaluation={"dataset": {"path": "no-such.jsonl"}})
    assert wrong.code == 2 and "no-such.jsonl does not exist" in wrong.err


def test_an_example_without_a_response_is_named(sft, tmp_path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "cab", "level": 1}\n')
    run = sft(dataset={"path": str(tmp_path / "bad.jsonl")}, evaluation={"interval": 0})
    assert run.code == 2, run.err
    assert "example bad.jsonl:1 has no response to train on" in run.err and "`level`" in run.err
