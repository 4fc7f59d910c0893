"""k steps, a stop and N - k steps are N steps, bit for bit; recorded batches replay; what may differ is named."""

import json
from pathlib import Path

import pytest
import torch

from forge_host.errors import PluginError, RunError
from forge_host.loop.buffer import Buffer
from forge_host.loop.replay import Replay, batch_file, write_batch
from forge_host.loop.rollout import Roller
from forge_host.loop.seeds import draw_seed
from forge_host.plugins.lock import LockedPlugin, PluginLock
from forge_host.types import Completion, Episode, Group, Prompt, SamplingParams


def weight(run) -> torch.Tensor:
    return torch.load(run.dir / "model" / "weight.pt", weights_only=True)


def responses(run) -> dict[str, str]:
    return {row["id"]: row["response"] for row in run.rollouts if row["kept"]}


def written(run) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in run.dir.rglob("*") if p.is_file() and p.parent.name != "logs"}


def test_a_resumed_run_is_the_run_that_was_not_stopped(fake_run, tmp_path) -> None:
    whole = fake_run(training={"max_steps": 4})
    weights, said = weight(whole), responses(whole)
    first = fake_run(training={"max_steps": 2}, checkpoint={"final": True, "export": False})
    assert first.code == 0 and [p.name for p in (first.dir / "checkpoints").iterdir()] == ["step-000002"]
    again = fake_run("--resume", str(first.dir), "--set", "training.max_steps=4", "--set", "checkpoint.export=true")
    assert again.code == 0, again.err
    assert again.dir == first.dir and [m["step"] for m in again.metrics] == [1, 2, 3, 4]
    assert torch.equal(weight(again), weights) and responses(again) == said

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(prompts.read_text() + json.dumps({"prompt": "bead", "answer": "b"}) + "\n")
    more = ("--resume", str(first.dir), "--set", "training.max_steps=5")
    before = written(first)
    refused = fake_run(*more, "--set", "trainer.delay_s=1")
    assert refused.code == 2 and "the data changed since the checkpoint" in refused.err
    assert "--allow dataset" in refused.err
    broken = fake_run(*more, "--allow", "dataset", "--set", "generator.wrong_weights=true")
    assert broken.code == 4 and "differ from the trainer's" in broken.err
    assert written(first) == before, "a run that does not go on stays as it was"
    assert fake_run(*more, "--allow", "dataset").code == 0
    changed = fake_run(*more, "--allow", "dataset", "--set", "training.seed=7")
    assert changed.code == 2 and "the seed changed since the checkpoint" in changed.err
    unknown = fake_run(*more, "--allow", "everything")
    assert unknown.code == 2 and "`everything` cannot be allowed" in unknown.err


def test_an_asynchronous_run_replays_from_its_record(fake_run) -> None:
    training = {"max_steps": 4, "max_policy_age": 2}
    # Three probes, then the twelve groups that may start with the first weights; they all do, however busy the machine
    # is, and eight of them are trained on after step 1.
    whole = fake_run(training=training, record={"batches": True}, generator={"update_after": 3 + 12})
    assert whole.code == 0, whole.err
    assert max(m["metrics"]["policy_age/max"] for m in whole.metrics) > 0
    replay = ("--replay", str(whole.dir))
    first = fake_run(*replay, training={**training, "max_steps": 2}, checkpoint={"final": True, "export": False})
    assert first.code == 0, first.err
    more = ("--set", "training.max_steps=4", "--set", "checkpoint.export=true")
    again = fake_run(*replay, "--resume", str(first.dir), *more)
    assert again.code == 0, again.err
    assert torch.equal(weight(again), weight(whole))
    with pytest.raises(RunError, match="has no batch of step 5; lower training.max_steps"):
        Replay(whole.dir).groups(5)


def completion(number: int) -> Completion:
    return Completion(text="x", token_ids=[number], logprobs=[-0.1 * number], prompt_ids=[1, 2], policy_versions=[7])


def test_a_batch_comes_back_to_the_last_bit(tmp_path) -> None:
    prompt = Prompt(id="p", messages=({"role": "user", "content": "?"},), target="1", metadata={"level": 2})
    episodes = tuple(
        Episode(id=f"0:p/{i}", prompt=prompt, completion=completion(i), reward=1 / 3, parts={"math": 1 / 3})
        for i in (1, 2)
    )
    write_batch(tmp_path / "batches", 3, [Group(id="0:p", prompt=prompt, episodes=episodes)])
    (group,) = Replay(tmp_path).groups(3)
    assert group.id == "0:p" and group.prompt.metadata == {"level": 2} and group.rewards == [1 / 3, 1 / 3]
    assert [list(e.completion.logprobs) for e in group.episodes] == [[-0.1], [-0.2]]
    batch_file(tmp_path / "batches", 3).write_bytes(b"not gzip")
    with pytest.raises(Exception, match="is damaged"):
        Replay(tmp_path).groups(3)


def test_seeds_depend_on_run_prompt_place_and_version() -> None:
    seeds = {draw_seed(*key) for key in ((0, "1:a", 0), (1, "1:a", 0), (0, "2:a", 0), (0, "1:a", 1))}
    assert len(seeds) == 4 and draw_seed(0, "1:a", 0) == draw_seed(0, "1:a", 0) and max(seeds) < 2**48


async def test_a_round_is_admitted_when_nothing_is_under_way() -> None:
    buffer = Buffer(groups_per_version=4, max_policy_age=0, starve_after=100)
    tickets = await buffer.admit_round()
    assert [t.number for t in tickets] == [0, 1, 2, 3]
    group = Group(id="g", prompt=Prompt(id="p", text="x"), episodes=())
    await buffer.finish(tickets[0], None, "equal")
    assert buffer.admitted == 3 and buffer.in_flight == 3, "the slot is free, but others are under way"
    for ticket in tickets[1:]:
        await buffer.finish(ticket, group)
    assert [t.number for t in await buffer.admit_round()] == [4]


async def test_a_round_is_divided_by_place() -> None:
    calls = []

    class Many:
        async def route(self, prompts, params):
            calls.append([ids[0] for ids in prompts])
            return [[completion(ids[0])] for ids in prompts]

    class Service:
        generate_many = Many()

    roller = Roller(
        encode=lambda p: [int(p.id)], generator=Service(), reward=None, sampler=None, sampling=SamplingParams(n=1),
        reward_timeout_s=1.0,
    )  # fmt: skip
    asked = [(Prompt(id=str(i), text="x"), SamplingParams(n=1, seed=i)) for i in range(5)]
    answers = await roller.generate_round(asked, 2)
    assert calls == [[0, 2, 4], [1, 3]] and [a[0].token_ids for a in answers] == [[0], [1], [2], [3], [4]]
    assert roller.spans.generating == 0 and roller.spans.tokens == 5


def test_a_difference_is_allowed_by_name() -> None:
    def lock(version: str, torch_version: str = "2.13.0") -> PluginLock:
        plugin = LockedPlugin(name="dapo", distribution="f-dapo", version=version, entry_point="x", sha256="y")
        return PluginLock(
            host="0.1", api="1.0", python="3.11.7", torch=torch_version, monarch="0.7.0", plugins=(plugin,),
            files={"/a.py": version},
        )  # fmt: skip

    saved, here = lock("1"), lock("2", "2.14.0")
    assert len(saved.differences(here)) == 3
    assert saved.differences(here, ["plugin:dapo", "torch", "file:/a.py"]) == []
    with pytest.raises(PluginError, match="file /a.py has changed.*--allow plugin:dapo") as caught:
        saved.check(here, "the checkpoint", ["torch"])
    assert "torch is" not in str(caught.value)


def test_replay_wants_a_record(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="has no recorded batches; record them with record.batches: true"):
        Replay(tmp_path)
