"""Conversations with an environment: exact token ids over turns, masks, errors that are no scores, and a whole run."""

import asyncio
from pathlib import Path

import attrs
import pytest

from forge_host.api import Completion, Episode, Prompt, tool_calls
from forge_host.loop.batch import rows_of, targets
from forge_host.loop.conversation import Ask, Done, Rollouts
from forge_host.loop.dialogue import Dialogue, TooLong
from forge_host.loop.prompts import PromptEncoder
from forge_host.loop.record import transcript
from forge_host.types import Group

HERE = Path(__file__).parent
PROMPT = Prompt(id="p", text="cab")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory) -> str:
    """A tokenizer with a chat template, in which `ab` is one token: text and tokens are not one to one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted({*pre_tokenizers.ByteLevel.alphabet(), "ab"})
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(letters)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = TEMPLATE
    path = tmp_path_factory.mktemp("chat")
    fast.save_pretrained(path)
    return str(path)


@pytest.fixture
def encode(chat_model) -> PromptEncoder:
    return PromptEncoder(chat_model, system=None, chat=True)


def reply(encode: PromptEncoder, *pieces: str, version: int = 3, end: bool = True) -> Completion:
    """A reply sampled as these pieces, each tokenised alone."""
    ids = [i for piece in pieces for i in encode.tokenizer(piece)["input_ids"]]
    ids += [encode.tokenizer.eos_token_id] if end else []
    return Completion(
        text="".join(pieces), token_ids=ids, logprobs=[-0.5] * len(ids), policy_versions=[version] * len(ids),
        finish_reason="stop" if end else "length",
    )  # fmt: skip


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_reply_is_never_tokenised_again(encode) -> None:
    """It was sampled as a, b; the tokenizer would write `ab`."""
    dialogue = Dialogue(encode, PROMPT, max_tokens=100, seq_len=400)
    asked = dialogue.hear([user("cab")])
    assert encode.tokenizer.decode(asked) == "<user>cab<end>\n<assistant>"
    said = reply(encode, "a", "b")
    dialogue.reply(said)
    ids = dialogue.hear([{"role": "tool", "content": "ab"}])
    assert ids[: len(asked) + 3] == [*asked, *said.token_ids] and len(said.token_ids) == 3
    assert encode.tokenizer.decode(ids[len(asked) + 3 :]) == "\n<tool>ab<end>\n<assistant>"  # no second <end>
    dialogue.reply(reply(encode, "d", version=4))
    whole = dialogue.completion()
    heard = len(ids) - len(asked) - 3
    assert list(whole.prompt_ids) == asked and [*whole.prompt_ids, *whole.token_ids][: len(ids)] == ids
    assert list(whole.mask) == [True] * 3 + [False] * heard + [True] * 2 and whole.num_sampled == 5
    assert list(whole.policy_versions) == [3] * 3 + [4] * (heard + 2)
    assert [whole.logprobs[i] for i, own in enumerate(whole.mask) if not own] == [0.0] * heard
    assert whole.text == "d" and transcript(whole) == "ab\n[tool] ab\n[assistant] d"


def test_a_cut_reply_gets_its_end_from_the_environment(encode) -> None:
    dialogue = Dialogue(encode, PROMPT, max_tokens=100, seq_len=400)
    asked = dialogue.hear([user("cab")])
    dialogue.reply(reply(encode, "c", end=False))
    ids = dialogue.hear([user("go on")])
    assert ids[len(asked) + 1] == encode.tokenizer.eos_token_id
    dialogue.reply(reply(encode, "d"))
    assert list(dialogue.completion().mask)[:2] == [True, False]


def test_no_room(encode) -> None:
    dialogue = Dialogue(encode, PROMPT, max_tokens=20, seq_len=60)
    dialogue.hear([user("cab")])
    dialogue.reply(reply(encode, "c"))
    assert dialogue.left == 18 and dialogue.hear([user("a" * 10)]) is None
    whole = dialogue.completion()
    assert whole.finish_reason == "length" and len(whole.token_ids) == 2
    with pytest.raises(TooLong, match="first question to prompt p has .* training.seq_len 60"):
        Dialogue(encode, PROMPT, max_tokens=20, seq_len=60).hear([user("a" * 50)])


def test_rows_leave_the_environment_out(encode) -> None:
    dialogue = Dialogue(encode, PROMPT, max_tokens=100, seq_len=400)
    dialogue.hear([user("cab")])
    for text in ("c", "d"):
        dialogue.reply(reply(encode, text))
        dialogue.hear([user("and?")])
    episode = Episode(id="e", prompt=PROMPT, completion=dialogue.completion(), reward=1.0)
    (row,) = rows_of([Group(id="g", prompt=PROMPT, episodes=(episode,))])
    given = targets([row])
    assert given["padding_mask"].sum() == 4 < given["padding_mask"].shape[1]
    assert given["padding_mask"][0].tolist() == list(episode.completion.mask)


# --- the environment's side -------------------------------------------------------------------------------------------


@attrs.frozen
class Twice:
    """Asks twice; `wrong` spoils the second question."""

    wrong: str = ""

    async def rollout(self, prompt, generate):
        messages = [user(prompt.text)]
        if self.wrong == "stop":
            await generate(messages, stop="</calc>")
        if self.wrong == "tokens":
            await generate(messages, max_tokens=0)
        if self.wrong == "silent":
            return generate.episode(reward=1.0)
        first = await generate(messages)
        while self.wrong == "endless":
            messages += [{"role": "assistant", "content": first.text}, user("again")]
            first = await generate(messages)
        messages += [{"role": "assistant", "content": first.text}, user("again")]
        if self.wrong == "raises":
            raise ZeroDivisionError("no")
        if self.wrong == "rewrites":
            messages[1]["content"] = "something else"
        if self.wrong == "nothing":
            return []
        if self.wrong == "nan":
            return generate.episode(reward=float("nan"))
        if self.wrong == "text":
            return "done"
        if self.wrong == "hangs":
            await asyncio.sleep(60)
        second = await generate(messages)
        return generate.episode(reward=float(second.text == "b"), parts={"turns": 2.0})


def converse(environment, *replies: str, timeout_s: float = 5.0) -> tuple[list[Ask], Done]:
    async def main():
        rollouts = Rollouts(environment, name="twice", timeout_s=timeout_s)
        asks, step = [], await rollouts.begin("r", PROMPT, 10)
        for text in replies:
            if isinstance(step, Done):
                break
            asks.append(step)
            ids = [1] if text else []
            step = await rollouts.resume("r", Completion(text=text, token_ids=ids, logprobs=[0.0] * len(ids)), 9)
        return asks, step

    return asyncio.run(main())


def test_new_messages_only_are_passed_on() -> None:
    asks, done = converse(Twice(), "a", "b")
    assert [ask.new for ask in asks] == [(user("cab"),), (user("again"),)]
    (episode,) = done.episodes
    assert episode.reward == 1.0 and episode.parts == {"turns": 2.0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("raises", r"environment `twice` raised ZeroDivisionError: no \(test_environment.py:"),
        ("rewrites", "changed what was said before"),
        ("nothing", "gave no episode"),
        ("nan", "reward is nan, not a finite number"),
        ("text", "gave str, not an Episode"),
        ("hangs", "took more than 0.2 s for one step"),
        ("tokens", "was called with max_tokens 0; give 1 or more"),
        ("silent", "gave an episode before it asked for a reply; await generate"),
        ("endless", "asked for more than 20 replies after the last token"),
    ],
)
def test_a_failure_is_an_error_and_no_score(wrong, message) -> None:
    import re

    _, done = converse(Twice(wrong), *(["", ""] * 12 if wrong == "endless" else "ab"), timeout_s=0.2)
    assert not done.episodes and re.search(message, done.error), done.error


def test_one_stop_text_is_not_its_letters() -> None:
    asks, _ = converse(Twice("stop"), "a")
    assert asks[0].stop == ("</calc>",)


def test_an_async_generator_of_single_replies() -> None:
    class Each:
        async def rollout(self, prompt, generate):
            completion = await generate([user(prompt.text)])
            yield Episode(id="1", prompt=prompt, completion=completion, reward=0.5)

    _, done = converse(Each(), "a")
    assert [e.completion.text for e in done.episodes] == ["a"]


def test_tool_calls() -> None:
    good, bad, cut = tool_calls(
        'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> <tool_call>{</tool_call>'
        '<tool_call>{"name": "mul"}'
    )
    assert (good.name, good.arguments, good.problem) == ("add", {"a": 1}, "")
    assert "not JSON" in bad.problem and cut.name == "mul" and not tool_calls("none")
    assert tool_calls('<tool_call>{"name": "f", "arguments": 3}</tool_call>')[0].problem


def test_one_reply_at_a_time() -> None:
    class Two:
        async def rollout(self, prompt, generate):
            await asyncio.gather(generate([user("a")]), generate([user("b")]))

    _, done = converse(Two(), "a")
    assert "one reply at a time" in done.error


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_learns_over_turns(fake_run) -> None:
    done = fake_run(
        environment={"use": f"{HERE / 'fake_environment.py'}:SayB"}, rewards=[],
        training={"batch_size": 4, "max_steps": 10}, algorithm={"max_tokens": 24},
        evaluation={"interval": 10, "num_prompts": 4, "n_samples": 2},
    )  # fmt: skip
    assert done.code == 0, done.err
    first, last = done.metrics[0]["metrics"], done.metrics[-1]["metrics"]
    assert last["reward/mean"] > first["reward/mean"] + 0.1, (first["reward/mean"], last["reward/mean"])
    assert last["reward/say-b/turns/mean"] == 2.0 and last["sync/verified"]
    assert "eval/pass@2" in last
    row = next(row for row in done.rollouts if row["kept"])
    assert "[user] cab" in row["response"] and row["num_tokens"] > 0
    assert "environment" in (done.dir / "config.resolved.yaml").read_text()


def test_its_failures_stop_the_run_by_name(fake_run) -> None:
    done = fake_run(environment={"use": f"{HERE / 'fake_environment.py'}:Fails"}, rewards=[])
    assert done.code == 4 and "environment `fails` raised ValueError: broken tool" in done.err, done.err


def test_an_environment_without_rollout_is_refused(fake_run) -> None:
    done = fake_run("--dry-run", environment={"use": f"{HERE / 'fake_environment.py'}:Nothing"}, rewards=[])
    assert done.code == 3 and "has no method `rollout`" in done.err, done.err


def test_prompts_that_are_too_long_are_left_out_everywhere(fake_run, tmp_path) -> None:
    """First in the file, so that the probe and the evaluation meet it too."""
    import json

    rows = [{"prompt": "c" * 70, "answer": "b"}, {"prompt": "cab", "answer": "b"}, {"prompt": "bad", "answer": "b"}]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = fake_run(
        dataset={"path": str(tmp_path / "long.jsonl"), "chat": False}, evaluation={"interval": 1, "num_prompts": 3},
        training={"batch_size": 2, "max_steps": 2},
    )  # fmt: skip
    assert done.code == 0, done.err
    assert {row["prompt"] for row in done.rollouts} == {"cab", "bad"}
    metrics = done.metrics[-1]["metrics"]
    assert metrics["data/left_out"] >= 1 and metrics["eval/num_prompts"] == 2
