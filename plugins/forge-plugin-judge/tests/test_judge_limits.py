"""Limits, batches, the cache, the key, the settings and the plan check of `http` and `judge`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forge_plugin_judge.judge import JudgeReward
from forge_plugin_judge.plan import findings
from forge_plugin_judge.service import HttpReward

from forge_host.api import RewardResult, RunError, UsageError, Use
from forge_host.config.sections import fields_of
from forge_host.testing import load_component

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Serve = Callable[[Callable[[Any, int], Answer]], Any]


def http(url: str, **config: Any) -> HttpReward:
    return HttpReward(url=url, **{"backoff_s": 0.01, "timeout_s": 5.0, "attempt_s": 5.0, **config})


def judge(url: str, **config: Any) -> JudgeReward:
    return JudgeReward(url=url, model="m", **{"backoff_s": 0.01, "timeout_s": 5.0, "attempt_s": 5.0, **config})


def chat(content: Any, finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}]}


# --- limits, batches, cache -----------------------------------------------------------------------------------------


async def test_concurrency_is_limited(serve: Serve) -> None:
    def answer(request: Any, n: int) -> Answer:
        time.sleep(0.03)
        return 200, {"reward": float(request["response"])}

    server = serve(answer)
    reward = http(server.url, max_concurrent=3, timeout_s=20.0)
    results = await asyncio.gather(*(reward(response=str(i)) for i in range(20)))
    assert [result.value for result in results if result] == [float(i) for i in range(20)]
    assert server.most_under_way == 3


async def test_batches_keep_their_order_and_their_errors(serve: Serve) -> None:
    def answer(request: Any, n: int) -> Answer:
        texts = [item["response"] for item in request["items"]]
        return 200, {"results": [{"error": "cannot"} if t == "3" else {"reward": float(t)} for t in texts]}

    server = serve(answer)
    reward = http(server.url, batch_size=4, batch_wait_s=0.05)
    results = await asyncio.gather(*(reward(response=str(i)) for i in range(10)), return_exceptions=True)
    assert [len(request["items"]) for request in server.requests] == [4, 4, 2]
    assert isinstance(results[3], RunError) and "cannot" in str(results[3])
    assert [r.value for i, r in enumerate(results) if i != 3] == [float(i) for i in range(10) if i != 3]


@pytest.mark.parametrize("reply", [{"results": [1.0]}, {"results": 1.0}, [1.0, 2.0], {"rewards": [1, 2]}])
async def test_a_batch_of_another_length_fails_all(serve: Serve, reply: Any) -> None:
    reward = http(serve(lambda request, n: (200, reply)).url, batch_size=2)
    results = await asyncio.gather(reward(response="a"), reward(response="b"), return_exceptions=True)
    assert all(isinstance(result, RunError) and "the reply to 2 items" in str(result) for result in results)


async def test_equal_content_is_asked_once(serve: Serve) -> None:
    server = serve(lambda request, n: (200, {"reward": float(n)}))
    reward = http(server.url)
    results = await asyncio.gather(*(reward(response="same") for _ in range(8)))
    results.append(await http(server.url)(response="same"))
    assert {result.value for result in results if result} == {0.0} and len(server.requests) == 1
    await reward(response="same", target="other")
    await reward(response="other")
    assert len(server.requests) == 3


async def test_null_is_kept_and_off_means_off(serve: Serve) -> None:
    server = serve(lambda request, n: (200, {"reward": None}))
    assert [await http(server.url)(response="r") for _ in range(3)] == [None] * 3
    assert len(server.requests) == 1
    await http(server.url, cache_entries=0)(response="r")
    await http(server.url, cache_entries=0)(response="r")
    assert len(server.requests) == 3


async def test_the_cache_file_outlives_the_process(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda request, n: (200, chat(json.dumps({"score": 5, "reason": "é"}))))
    file = tmp_path / "made" / "grades.sqlite"
    first = await judge(server.url, cache_file=str(file))(prompt="p", response="r\x00\ud800")
    # Another number of entries is another cache object, with nothing in memory, as in another process.
    again = await judge(server.url, cache_file=str(file), cache_entries=5)(prompt="p", response="r\x00\ud800")
    assert first == again == RewardResult(0.5, {"score": 5.0}, "é")
    assert len(server.requests) == 1
    await judge(server.url, cache_file=str(file), max_tokens=9)(prompt="p", response="r\x00\ud800")
    assert len(server.requests) == 2


async def test_one_that_gives_up_leaves_the_others_their_answer(serve: Serve) -> None:
    def answer(request: Any, n: int) -> Answer:
        time.sleep(0.3)
        return 200, {"reward": 1.0}

    server = serve(answer)
    reward = http(server.url)
    impatient = asyncio.ensure_future(asyncio.wait_for(reward(response="r"), 0.05))
    patient = asyncio.ensure_future(reward(response="r"))
    with pytest.raises(TimeoutError):
        await impatient
    assert await patient == RewardResult(1.0) and len(server.requests) == 1


def test_works_in_one_event_loop_after_another(serve: Serve) -> None:
    server = serve(lambda request, n: (200, {"reward": 1.0}))
    reward = http(server.url, cache_entries=0)
    for _ in range(3):
        assert asyncio.run(reward(response="r")) == RewardResult(1.0)


# --- the key, the settings, the plan --------------------------------------------------------------------------------


async def test_the_key_comes_from_the_environment_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda request, n: (401 if n else 200, {"reward": 1.0}))
    reward = http(server.url, api_key_env="MY_JUDGE_KEY")
    monkeypatch.delenv("MY_JUDGE_KEY", raising=False)
    with pytest.raises(UsageError, match="MY_JUDGE_KEY is not set"):
        await reward(response="r")
    monkeypatch.setenv("MY_JUDGE_KEY", "sk-very-secret")
    await reward(response="r")
    assert server.headers[0]["Authorization"] == "Bearer sk-very-secret"
    with pytest.raises(RunError) as caught:
        await reward(response="other")
    assert "very-secret" not in str(caught.value) + repr(reward) + str(fields_of(reward))


@pytest.mark.parametrize(
    "config",
    [{"url": "http://user:pass@host/"}, {"url": "127.0.0.1:8000"}, {"url": "ftp://x"}, {"api_key_env": "sk-abc123"},
     {"timeout_s": 0}, {"max_concurrent": 0},
     {"send": []}, {"send": ["answer"]}, {"batch_size": 0}],
)  # fmt: skip
def test_bad_settings_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        load_component("reward", "http", {"url": "http://127.0.0.1:9/", **config})


def test_a_key_in_the_configuration_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="NAME of an environment variable") as caught:
        load_component("reward", "http", {"url": "http://127.0.0.1:9/", "api_key_env": "sk-abc123"})
    assert "abc123" not in str(caught.value)


def test_bad_judge_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="score_min 5 is not below score_max 5"):
        judge("http://127.0.0.1:9/v1", score_min=5, score_max=5)
    empty = tmp_path / "rubric.txt"
    empty.write_text("Grade it.")
    for file, says in ((str(empty), r"no \{response\}"), (str(tmp_path / "none"), "cannot be read")):
        with pytest.raises(UsageError, match=says):
            asyncio.run(judge("http://127.0.0.1:9/v1", rubric_file=file)(prompt="p", response="r"))


async def test_what_is_no_json_is_refused(serve: Serve) -> None:
    server = serve(lambda request, n: (200, 1))
    with pytest.raises(UsageError, match="cannot be sent as JSON"):
        await http(server.url)(response="r", metadata={"image": object()})


async def test_bad_cache_file_is_refused(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "text.sqlite"
    file.write_text("this is no database, and long enough to be seen as none" * 20)
    with pytest.raises(UsageError, match="cannot be used"):
        await http(serve(lambda request, n: (200, 1)).url, cache_file=str(file))(response="r")


def test_plan_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MY_JUDGE_KEY", raising=False)

    def check(**config: Any) -> list[str]:
        part = SimpleNamespace(plugin="judge", name="judge", use=Use("judge", config))
        plan = SimpleNamespace(rewards=((part, 1.0),), config=SimpleNamespace(reward=SimpleNamespace(timeout_s=10.0)))
        return [f"{finding.level} {finding.message}" for finding in findings(plan)]  # type: ignore[arg-type]

    assert check() == []
    assert "MY_JUDGE_KEY is not set" in check(api_key_env="MY_JUDGE_KEY")[0]
    assert "may take 60 s, reward.timeout_s is 10" in check(timeout_s=60.0)[0]
    assert "cannot be read" in check(rubric_file=str(tmp_path / "none"))[0]
