"""A dataset's own responses as rows to train on: conversations as the chat template writes them, with a loss mask.

Why: SFT takes the datasets that RL takes. An example is a prompt with a response (one of RESPONSE_FIELDS in its
metadata, else its target), or a conversation with assistant turns; loss falls on what the assistant says and on the
end of its turn.

    encode = ExampleEncoder("path/to/hf-folder", system=None, chat=True, seq_len=2048)
    rows = encode(Prompt(id="1", text="What is 2 + 3?", target="5"))       # usually one `batch.Row`

A template that rewrites earlier turns when later ones follow (Qwen3 drops their thinking) gives one row an assistant
turn, each with the history that the model would see when it speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_host.errors import UsageError
from forge_host.loop.batch import Row
from forge_host.loop.prompts import PromptEncoder
from forge_host.types import Completion, Prompt

#: Metadata fields that hold the response to train on, where a dataset has one beside its target.
RESPONSE_FIELDS = ("response", "completion", "output")
Messages = Sequence[Mapping[str, Any]]


class ExampleEncoder:
    """Examples to rows. `truncated` and `too_long` count what the length limit did since the start.

    Args:
        seq_len: most tokens of a row.
        truncate: cut longer rows instead of leaving them out.
        max_prompt_tokens: rows whose prompt (all before the first trained token) is longer are left out.
    """

    def __init__(
        self,
        model_path: str,
        *,
        system: str | None,
        chat: bool,
        seq_len: int,
        truncate: bool = False,
        max_prompt_tokens: int | None = None,
    ) -> None:
        self.prompts = PromptEncoder(model_path, system=system, chat=chat)
        self.tokenizer = self.prompts.tokenizer
        self.seq_len, self.truncate, self.max_prompt_tokens = seq_len, truncate, max_prompt_tokens
        self.too_long = self.truncated = 0
        self._last: tuple[Prompt, list[Row]] | None = None

    def __call__(self, prompt: Prompt) -> list[Row]:
        """The example's rows; none when they are all too long.

        Raises:
            UsageError: there is nothing to train on in it.
        """
        if self._last is not None and self._last[0] is prompt:
            return self._last[1]
        rows = [row for ids, mask in self.tokens(prompt) if (row := self._row(ids, mask)) is not None]
        self._last = (prompt, rows)
        return rows

    def tokens(self, prompt: Prompt) -> list[tuple[list[int], list[bool]]]:
        """Token ids of each of the example's sequences, whole, and which of them are trained on."""
        messages = self.prompts.messages(prompt)
        if messages is None:
            return [self._plain(prompt)]
        turns = conversation(prompt, messages)
        if not self.tokenizer.chat_template:
            self.prompts.render(prompt)  # raises the sentence that says so
        return self._chat(prompt, turns)

    def _plain(self, prompt: Prompt) -> tuple[list[int], list[bool]]:
        response = response_of(prompt)
        if not isinstance(response, str) or not response:
            raise nothing_to_train_on(prompt)
        given = self.prompts(prompt)
        answer = list(self.tokenizer(response, add_special_tokens=False)["input_ids"])
        if self.tokenizer.eos_token_id is not None:
            answer.append(self.tokenizer.eos_token_id)
        return [*given, *answer], [False] * len(given) + [True] * len(answer)

    def _chat(self, prompt: Prompt, turns: Messages) -> list[tuple[list[int], list[bool]]]:
        # A turn that opens the conversation answers nothing: it is context.
        said = [i for i, t in enumerate(turns) if i and t["role"] == "assistant" and t.get("weight", 1) != 0]
        if not said:
            raise nothing_to_train_on(prompt)
        spans = {i: self._span(prompt, turns[: i + 1]) for i in said}
        whole = spans[said[-1]][0]
        if all(whole.startswith(text) for text, _, _ in spans.values()):
            return [self._marked(whole, [(begin, end) for _, begin, end in spans.values()])]
        return [self._marked(text, [(begin, end)]) for text, begin, end in spans.values()]

    def _span(self, prompt: Prompt, turns: Messages) -> tuple[str, int, int]:
        """The conversation up to an assistant turn as text, and where in it that turn begins and ends."""
        before = self.prompts.written(turns[:-1], prompt.id, add_generation_prompt=True)
        text = self.prompts.written(turns, prompt.id)
        if not text.startswith(before):
            raise UsageError(
                f"the chat template of {self.prompts.model_path} does not write an assistant turn as its generation "
                f"prompt begins it (example {prompt.id})",
                fix="use a template whose assistant turns begin with what add_generation_prompt adds",
            )
        calls = [str(call.get("function", call).get("name")) for call in turns[-1].get("tool_calls") or ()]
        if any(name not in text[len(before) :] for name in calls):
            raise UsageError(
                f"the chat template of {self.prompts.model_path} does not write tool calls (example {prompt.id}), so "
                "nothing would be learned of them",
                fix="use a model whose template has them, or write the calls into the content",
            )
        # White space after the end-of-turn token belongs to the template; nothing generates it.
        return text, len(before), max(len(text.rstrip()), len(before))

    def _marked(self, text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[bool]]:
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        mask = [
            end > start and any(first <= start < last for first, last in spans)
            for start, end in encoded["offset_mapping"]
        ]
        return list(encoded["input_ids"]), mask

    def _row(self, ids: list[int], mask: list[bool]) -> Row | None:
        if len(ids) > self.seq_len and self.truncate:
            ids, mask = ids[: self.seq_len], mask[: self.seq_len]
            self.truncated += 1
        # The first token has nothing before it to be predicted from.
        trained = [i for i, counts in enumerate(mask) if counts and i > 0]
        first = trained[0] if trained else len(ids)
        limit = self.max_prompt_tokens
        if not trained or len(ids) > self.seq_len or (limit is not None and first > limit):
            self.too_long += 1
            return None
        last = trained[-1] + 1
        answer = Completion(
            text="", token_ids=ids[first:last], logprobs=[0.0] * (last - first), prompt_ids=ids[:first]
        )
        return Row(completion=answer, group_id=0, reward=1.0, mask=mask[first:last], sampled=False)


def conversation(prompt: Prompt, messages: Messages) -> list[Mapping[str, Any]]:
    """The prompt's messages with its response as the last turn, if they do not have it."""
    turns = list(messages)
    response = response_of(prompt)
    if turns[-1].get("role") == "assistant" or response is None:
        return turns
    if isinstance(response, str):
        return [*turns, {"role": "assistant", "content": response}]
    return [*turns, *response]


def response_of(prompt: Prompt) -> Any:
    """What the model should answer: text, messages, or None when the prompt does not say."""
    for name in RESPONSE_FIELDS:
        value = prompt.metadata.get(name)
        if (isinstance(value, str) and value) or (isinstance(value, Sequence) and value and _are_messages(value)):
            return value
    return prompt.target


def _are_messages(value: Sequence[Any]) -> bool:
    return all(isinstance(m, Mapping) and isinstance(m.get("role"), str) and "content" in m for m in value)


def nothing_to_train_on(prompt: Prompt) -> UsageError:
    """The error for an example without a response, which says what it has instead."""
    has = ", ".join(f"`{name}`" for name in prompt.metadata) or "none"
    useless = next((name for name in RESPONSE_FIELDS if name in prompt.metadata), None)
    why = (
        f"its `{useless}` is {prompt.metadata[useless]!r:.60}, not text or messages"
        if useless
        else f"and none of {', '.join(RESPONSE_FIELDS)} among its other fields ({has})"
    )
    return UsageError(
        f"example {prompt.id} has no response to train on: no assistant message that answers, no target, {why}",
        fix="name the field with the response, as dataset.target_field",
    )
