"""Gates: below its threshold a reward closes the others. And the alarm for a reward that says the same of all."""

import pytest

from forge_host.cli.main import main
from forge_host.config import load_plugins, resolve
from forge_host.errors import UsageError
from forge_host.loop.alarms import ConstantRewards
from forge_host.loop.scoring import Scorer
from forge_host.types import Completion, Prompt

PROMPT = Prompt(id="p", text="2+2?", target="4")
CALLS = []


def tags(response: str) -> float:
    return 1.0 if response.startswith("<a>") else 0.5 if "<a>" in response else 0.0


def judge(response: str) -> float:
    CALLS.append(response)
    return 0.8


def length(response: str) -> float:
    return -0.25


def broken(response: str) -> float:
    raise ZeroDivisionError("in the gate")


def abstains(response: str) -> None:
    return None


async def score(text: str, *, gates, gate=tags, mode: str = "mean", shaping=()):
    CALLS.clear()
    scorer = Scorer([("tags", gate, 1.0), ("judge", judge, 3.0)], shaping, mode=mode, gates=gates)
    completion = Completion(text=text, token_ids=[1], logprobs=[0.0])
    return await scorer.score(PROMPT, completion, episode_id="e", max_tokens=8)


@pytest.mark.parametrize(
    ("text", "threshold", "reward", "passed"),
    [
        ("<a>4", 1.0, (1.0 + 3 * 0.8) / 4, 1.0),
        ("4<a>", 1.0, 0.5 / 4, 0.0),
        ("4<a>", 0.5, (0.5 + 3 * 0.8) / 4, 1.0),
        ("4", 0.5, 0.0, 0.0),
    ],
)
async def test_a_closed_gate_leaves_its_own_value(text, threshold, reward, passed) -> None:
    episode = await score(text, gates={"tags": threshold})
    assert episode.reward == pytest.approx(reward) and episode.parts["tags/passed"] == passed
    assert CALLS == ([text] if passed else []), "the others are not called behind a closed gate"
    assert ("gate tags is closed" in episode.note) == (not passed)


async def test_sum_and_shaping_behind_a_closed_gate() -> None:
    shaping = [("length", length)]
    assert (await score("4<a>", gates={"tags": 1.0}, mode="sum", shaping=shaping)).reward == 0.25
    assert (await score("<a>4", gates={"tags": 1.0}, mode="sum", shaping=shaping)).reward == pytest.approx(3.15)
    assert (await score("4<a>", gates={}, mode="sum")).reward == pytest.approx(0.5 + 2.4)


async def test_a_gate_that_fails_is_an_error_and_one_that_abstains_is_open() -> None:
    episode = await score("4", gates={"tags": 1.0}, gate=broken)
    assert episode.reward is None and "ZeroDivisionError" in episode.error and not CALLS
    episode = await score("4", gates={"tags": 1.0}, gate=abstains)
    assert episode.reward == pytest.approx(0.8) and CALLS == ["4"]


@pytest.fixture
def rewards(fake_config):
    def resolved(rewards, **reward):
        config = fake_config(rewards=rewards, reward=reward)
        host = load_plugins([config], plugin_files=(__file__.replace("test_gates", "fake_roles"),))
        return resolve([config], host=host)

    return resolved


def test_gates_in_a_configuration(rewards) -> None:
    here = __file__
    judged = {"use": f"{here}:judge", "gate": 0.5, "weight": 2}
    resolved = rewards([{"use": f"{here}:tags", "gate": True}, judged, f"{here}:length"])
    assert resolved.config.reward.gates == {"tags": 1.0, "judge": 0.5}
    assert [weight for _, weight in resolved.config.rewards] == [1.0, 2.0, 1.0]
    assert rewards([{"use": f"{here}:tags", "gate": False}]).config.reward.gates == {}
    with pytest.raises(UsageError, match=r"gates names `tag`, which is not among the rewards; did you mean `tags`"):
        rewards([f"{here}:tags"], gates={"tag": 1})


def test_a_resolved_configuration_keeps_its_gates(fake_config, capsys) -> None:
    config = fake_config(rewards=[{"use": f"{__file__}:tags", "gate": 0.5}])
    roles = __file__.replace("test_gates", "fake_roles")
    assert main(["config", "show", config, "--plugin-file", roles]) == 0
    text = capsys.readouterr().out
    assert "gates:\n    tags: 0.5" in text


def test_a_constant_reward_is_named_once() -> None:
    constant = ConstantRewards(after=3)
    steps = [(0.5, 0.1), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.9, 0.3)]
    whole = {"reward/mean": 1.0, "reward/std": 0.0}
    said = [list(constant({**whole, "reward/math/mean": m, "reward/math/std": s})) for m, s in steps]
    assert [len(sentences) for sentences in said] == [0, 0, 0, 1, 0, 0]
    assert said[3][0].startswith("reward `math` was 1 for every response of the last 3 steps")


def test_a_value_that_changes_between_steps_is_not_constant() -> None:
    constant = ConstantRewards(after=2)
    metrics = ({"reward/a/mean": float(i), "reward/a/std": 0.0} for i in range(9))
    assert not [sentence for step in metrics for sentence in constant(step)]
    shut = ConstantRewards(after=2)
    closed = dict.fromkeys(("g/passed/mean", "g/std", "g/mean", "b/std", "b/mean"), 0.0)
    said = [list(shut({f"reward/{name}": value for name, value in closed.items()})) for _ in range(3)]
    assert [len(sentences) for sentences in said] == [0, 1, 0]
    assert said[1][0].startswith("gate `g` was closed for every response of the last 2 steps, so no other reward")
    never = ConstantRewards(after=0)
    assert not [s for _ in range(9) for s in never({"reward/a/mean": 0.0, "reward/a/std": 0.0})]
