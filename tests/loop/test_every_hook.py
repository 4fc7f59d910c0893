"""The documentation's example of every hook, in a whole run: each observer is called and does what its example says."""

import json

from forge_host.docs.hooks import EXAMPLE


def test_the_example_of_every_hook_works_in_a_run(fake_run) -> None:
    run = fake_run("--plugin-file", str(EXAMPLE), checkpoint={"final": True}, record={"token_ids": True})
    assert run.code == 0, run.err
    assert (run.dir / "started").read_text().startswith(run.dir.name)
    assert json.loads((run.dir / "finished").read_text()) == "done" and not (run.dir / "failed").exists()
    assert (run.dir / "newest_weights").read_text().startswith("3 after ")
    assert "step-000003" in (run.dir / "newest_checkpoint").read_text()
    assert (run.dir / "logs" / "controller.jsonl").read_text()
    row = run.rollouts[-1]
    assert len(row["token_ids"]) == row["num_tokens"] and row["prompt_ids"]
    assert row["seconds"]["generate_s"] > 0 and row["seconds"]["reward_s"] > 0


def test_its_observer_of_failures_is_called(fake_run) -> None:
    run = fake_run("--plugin-file", str(EXAMPLE), trainer={"die_at": 2})
    assert run.code == 4 and "trainer-0 died" in (run.dir / "failed").read_text()
