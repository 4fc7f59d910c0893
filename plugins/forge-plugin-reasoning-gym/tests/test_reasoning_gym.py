"""Tasks are made on demand, the same each time; each task's own answer gets its grader's full score."""

import json
import random

import pytest
from forge_plugin_reasoning_gym.tasks import ENTRY

from forge_host.api import PluginError, UsageError
from forge_host.testing import PluginContract, load_component


class TestPlugin(PluginContract):
    plugin = "reasoning-gym"


def tasks(**settings):
    return load_component("dataset", "reasoning-gym/tasks", settings)


def grade(response: str, prompt, **settings):
    return load_component("reward", "reasoning-gym/grader", settings)(response, prompt.metadata)


def test_settings_are_checked_without_the_library() -> None:
    for settings, message in (
        ({"tasks": {"a": {}}, "params": {"x": 1}}, "params belong to task"),
        ({"tasks": {"a": {"weight": 0}}}, "weight of a is 0, not above 0"),
        ({"task": "a", "template": "no"}, "has no {prompt}"),
    ):
        with pytest.raises(UsageError) as error:
            tasks(**settings)
        assert message in str(error.value)


def test_a_missing_library_is_said(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(PluginError, match=r"pip install 'forge-plugin-reasoning-gym\[tasks\]'"):
        tasks(task="countdown")[0]


def test_a_prompt_of_another_dataset_is_refused() -> None:
    with pytest.raises(UsageError, match="grades prompts of the dataset"):
        load_component("reward", "reasoning-gym/grader")("5", {})


@pytest.fixture
def library():
    return pytest.importorskip("reasoning_gym", reason="needs pip install 'forge-plugin-reasoning-gym[tasks]'")


@pytest.mark.parametrize("task", ["countdown", "basic_arithmetic", "spell_backward", "simple_equations", "maze"])
def test_its_own_answer_is_right(library, task) -> None:
    dataset = tasks(task=task, size=5, seed=7)
    for prompt in dataset:
        assert grade(f"I think <answer>{prompt.target}</answer>", prompt).value == 1.0
        assert grade("<think>hm</think> zzz", prompt).value < 1.0
        assert grade("", prompt).parts == {"answered": 0.0}
        json.dumps(prompt.metadata)
    assert grade(prompt.target, prompt, need_tag=True).value == 0.0
    assert grade("x" * 5000, prompt).value == 0.0


def test_same_again_and_other_seeds_differ(library) -> None:
    first, again, other = (tasks(task="countdown", size=4, seed=s) for s in (0, 0, 1))
    assert [p.text for p in first] == [p.text for p in reversed([again[i] for i in (3, 2, 1, 0)])]
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert {p.text for p in first}.isdisjoint(p.text for p in other)


def test_the_global_generator_is_left_alone(library) -> None:
    random.seed(5)
    state = random.getstate()
    prompt = tasks(task="countdown", size=2)[1]
    grade("7", prompt)
    assert random.getstate() == state


def test_several_tasks_by_weight(library) -> None:
    dataset = tasks(tasks={"countdown": {"weight": 3, "min_numbers": 3}, "spell_backward": {}}, size=200)
    names = [p.metadata["category"] for p in dataset]
    assert 120 < names.count("countdown") < 180 and set(names) == {"countdown", "spell_backward"}
    prompt = next(p for p in dataset if p.metadata["category"] == "spell_backward")
    assert grade(prompt.target, prompt).value == 1.0 and prompt.metadata[ENTRY]["answer"] == prompt.target


def test_wrong_tasks_are_named(library) -> None:
    with pytest.raises(UsageError, match="no task `countdwn`; did you mean countdown"):
        tasks(task="countdwn")[0]
    with pytest.raises(UsageError, match="task `countdown` has no parameter `numbers`; it has .*min_numbers"):
        tasks(task="countdown", params={"numbers": 3})[0]
    with pytest.raises(UsageError, match="task `countdown` refuses its parameters"):
        tasks(task="countdown", params={"min_numbers": 9, "max_numbers": 3})[0]
