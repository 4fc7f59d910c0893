"""Races of a recovery, made to happen: a version published during a restart, a worker that dies under one group."""

from types import SimpleNamespace

import pytest

from forge_host.api import Receipt
from forge_host.config.schema import ServiceConfig
from forge_host.errors import RunError
from forge_host.loop.ledger import Ledger, check_ledger
from forge_host.loop.rollout import Roller
from forge_host.loop.weights import WeightSync
from forge_host.runtime.handle import ActorDied
from forge_host.runtime.service import Service
from forge_host.types import Completion, Episode, Group, Prompt, SamplingParams

PROMPT = Prompt(id="p", text="x")


def receipt(version: int) -> Receipt:
    return Receipt(version=version, num_tensors=1, num_bytes=4, location={})


class Weights:
    """An endpoint whose loading lets `during` happen, once."""

    def __init__(self, during, fail: bool = False) -> None:
        self.loaded, self.during, self.fail = [], during, fail

    async def call_one(self, found: Receipt, verify: bool, timeout_s: float) -> str:
        during, self.during = self.during, None
        if during is not None:
            during()
            if self.fail:
                raise RunError("version 1 is gone")
        self.loaded.append(found.version)
        return ""


@pytest.mark.parametrize("fail", [False, True], ids=["stale", "gone"])
async def test_a_restarted_replica_gets_what_was_published_meanwhile(fail: bool) -> None:
    sync = WeightSync(SimpleNamespace(), SimpleNamespace(), verify=False, timeout_s=1.0)
    sync.receipt = receipt(1)
    weights = Weights(lambda: setattr(sync, "receipt", receipt(2)), fail)
    await sync.refresh(SimpleNamespace(update_weights=weights, dead=None))
    assert weights.loaded == ([2] if fail else [1, 2])


async def test_a_failure_that_a_newer_version_does_not_explain_is_raised() -> None:
    sync = WeightSync(SimpleNamespace(), SimpleNamespace(), verify=False, timeout_s=1.0)
    sync.receipt = receipt(1)
    with pytest.raises(RunError, match="is gone"):
        await sync.refresh(SimpleNamespace(update_weights=Weights(lambda: None, fail=True), dead=None))


class Worker:
    """A reward worker's handle; it dies under the responses in `deadly`, `lives` says how often in all."""

    def __init__(self, deadly: dict[str, int]) -> None:
        self.mesh, self.dead, self.deadly, self.score = "reward-0", None, deadly, self

    async def call_one(self, group_id, prompt, completions, timeout_s):
        if self.deadly.get(group_id, 0) > 0:
            self.deadly[group_id] -= 1
            self.dead = "Killed(sig=9)"
            raise ActorDied("reward-0 died")
        return [Episode(id=f"{group_id}/0", prompt=prompt, completion=c, reward=1.0) for c in completions], False

    def kill(self) -> None: ...

    async def shutdown(self, timeout_s: float = 1.0) -> None: ...


@pytest.mark.parametrize(("deaths", "graded"), [(0, True), (1, True), (2, False)])
async def test_a_group_is_dropped_when_the_worker_dies_under_it_twice(deaths: int, graded: bool) -> None:
    deadly = {"g": deaths}

    async def start(index: int, restart: int) -> Worker:
        return Worker(deadly)

    reward = Service("reward", ServiceConfig(), start)
    await reward.start()
    roller = Roller(
        encode=None, generator=None, reward=reward, sampler=None, sampling=SamplingParams(n=1), reward_timeout_s=1.0
    )
    completion = Completion(text="b", token_ids=[1], logprobs=[-0.1], policy_versions=[0])
    (episode,) = await roller.score("g", PROMPT, [completion])
    assert (episode.reward == 1.0) == graded and reward.restarts == deaths
    assert (episode.error == "reward process died: Killed(sig=9)") != graded
    (other,) = await roller.score("h", PROMPT, [completion])
    assert other.reward == 1.0


def group(name: str, rewards: list[float | None]) -> Group:
    def one(index: int, reward: float | None) -> Episode:
        completion = Completion(text="b", token_ids=[1] * (index < 3), logprobs=[-0.1] * (index < 3))
        error = "reward `x` raised" if reward is None else None
        return Episode(id=f"{name}/{index}", prompt=PROMPT, completion=completion, reward=reward, error=error)

    return Group(id=name, prompt=PROMPT, episodes=tuple(one(i, r) for i, r in enumerate(rewards)))


def test_the_ledger_gives_every_episode_one_fate_also_after_a_resume(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for name in ("a", "b", "c", "d"):
        ledger.requested(name, 4)
    ledger.trained(1, group("a", [1.0, None, 0.0, 1.0]))
    ledger.dropped(1, group("b", [1.0, 1.0]), "rewards are all equal")
    kept = ledger.position()
    ledger.trained(2, group("c", [1.0, 0.0, 1.0]))
    ledger.ready("d")
    ledger.close(2)
    reasons = {
        "rewards are all equal": 2, "the generator returned fewer": 3,
        "reward `x` raised": 1, "the response is empty": 1,
    }  # fmt: skip
    assert ledger.totals() == {"requested": 16, "trained": 5, "dropped": 7, "left": 4, "reasons": reasons}
    assert check_ledger(tmp_path) == {"trained": 5, "dropped": 7, "left": 4}
    with pytest.raises(AssertionError, match="c has two fates"):
        Ledger(tmp_path / "other.jsonl").trained(3, group("c", [1.0]))
    again = Ledger(path, kept)
    assert again.totals()["requested"] == 8
    again.requested("c", 4)
    again.trained(2, group("c", [1.0, 0.0, 1.0]))
    again.close(2)
    assert check_ledger(tmp_path) == {"trained": 5, "dropped": 7}
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match="a has two fates"):
        check_ledger(tmp_path)
