"""The tokens of a conversation of several turns: later turns are appended to the exact ids of the earlier ones.

Why: text that was sampled as tokens is often not the same tokens again when it is tokenised, and a policy must be
trained on what it sampled. So a reply is never tokenised; only what the environment says is, once, when it is said.

    dialogue = Dialogue(encode, prompt, max_tokens=256, seq_len=1024)
    ids = dialogue.hear(messages)              # what the generator gets; None when no token is left for a reply
    dialogue.reply(completion)
    dialogue.completion()                      # the whole conversation; `mask` is False where the environment speaks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from forge_host.errors import RunError, UsageError
from forge_host.loop.prompts import PromptEncoder
from forge_host.types import Completion, Prompt

#: Stands for the reply when a template writes what follows it. No template changes or escapes it.
REPLY = "forge0reply0stands0here"
EMPTY = Completion(text="", token_ids=(), logprobs=(), finish_reason="length")


class TooLong(RunError):
    """A conversation whose first question leaves no room for the answer."""


class Dialogue:
    """One conversation.

    Args:
        prompt: whose system message, if the run has one, is put first.
        max_tokens: of everything after the first question: replies and what the environment says between them.
        seq_len: of everything.
    """

    def __init__(self, encode: PromptEncoder, prompt: Prompt, *, max_tokens: int, seq_len: int) -> None:
        self.encode, self.prompt, self.max_tokens, self.seq_len = encode, prompt, max_tokens, seq_len
        self.prompt_ids: list[int] = []
        self.turns: list[Mapping[str, Any]] = []  # everything said after the first question
        self.num_replies = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._mask: list[bool] = []
        self._generate_s = 0.0
        self._last = EMPTY
        self._pending: list[int] = []  # heard, and not yet answered

    @property
    def left(self) -> int:
        """Tokens that the next reply and what comes before it may still have."""
        return max(0, self.max_tokens - len(self._ids))

    @property
    def num_tokens(self) -> int:
        """Tokens of all that was said."""
        return len(self.prompt_ids) + len(self._ids)

    def hear(self, new: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int] | None:
        """Token ids of all that was said, `new` included; None when they leave no room for a reply.

        Raises:
            TooLong: the first question alone does not fit.
        """
        if not self.prompt_ids:
            self.prompt_ids = self._question(new, tools)
            if len(self.prompt_ids) + self.max_tokens > self.seq_len:
                raise TooLong(
                    f"the environment's first question to prompt {self.prompt.id} has {len(self.prompt_ids)} tokens, "
                    f"which with {self.max_tokens} for the answer are more than training.seq_len {self.seq_len}",
                    fix="raise training.seq_len, lower sampling.max_tokens, or set dataset.max_prompt_tokens",
                )
            return list(self.prompt_ids)
        self.turns += [dict(message) for message in new]
        said = self._between(new)
        if len(said) >= self.left:
            self._last = attrs.evolve(self._last, finish_reason="length")
            return None
        self._pending = said
        return [*self.prompt_ids, *self._ids, *said]

    def reply(self, completion: Completion) -> None:
        """Take in what the generator gave for the ids of `hear`."""
        versions = list(completion.policy_versions)
        heard = self._pending
        self._ids += [*heard, *completion.token_ids]
        self._logprobs += [*(0.0 for _ in heard), *completion.logprobs]
        # Nobody sampled these; they get the version of the reply that they stand before.
        self._versions += [*(versions[:1] * len(heard)), *versions]
        self._mask += [*(False for _ in heard), *(True for _ in completion.token_ids)]
        self._pending, self._last = [], completion
        self.num_replies += 1
        self._generate_s += completion.metadata.get("generate_s", 0.0)
        self.turns.append({"role": "assistant", "content": completion.text})

    def completion(self) -> Completion:
        """All after the first question as one response. Its text is the last reply's, `metadata["turns"]` has all."""
        return Completion(
            text=self._last.text, token_ids=tuple(self._ids), logprobs=tuple(self._logprobs),
            prompt_ids=tuple(self.prompt_ids), policy_versions=tuple(self._versions), mask=tuple(self._mask),
            finish_reason=self._last.finish_reason,
            metadata={"turns": tuple(self.turns), "num_replies": self.num_replies, "generate_s": self._generate_s},
        )  # fmt: skip

    def _question(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        if not self._has_template():
            return self.encode(Prompt(id=self.prompt.id, text=_joined(messages)))
        return self.encode(Prompt(id=self.prompt.id, messages=tuple(messages)), tools=tools)

    def _between(self, new: Sequence[Mapping[str, Any]]) -> list[int]:
        """What the template writes after a reply, up to where the next one begins, as tokens.

        Its end-of-turn token is left out where the reply sampled it.
        """
        tokenizer = self.encode.tokenizer
        if not self._has_template():
            return list(tokenizer(_joined(new), add_special_tokens=False)["input_ids"])
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": REPLY}]
        text = self.encode.written([*before, *new], self.prompt.id, add_generation_prompt=True)
        if text.count(REPLY) != 1:
            raise UsageError(
                f"the chat template of {self.encode.model_path} does not write a reply as it is, so that turns cannot "
                "be appended to it",
                fix="use a template that keeps assistant messages, or an environment of one turn",
            )
        ids = list(tokenizer(text.partition(REPLY)[2], add_special_tokens=False)["input_ids"])
        return ids[1:] if ids and self._ids and ids[0] == self._ids[-1] else ids

    def _has_template(self) -> bool:
        return self.encode.chat and bool(self.encode.tokenizer.chat_template)


def _joined(messages: Sequence[Mapping[str, Any]]) -> str:
    """Without a chat template what is said is written as it is."""
    return "".join(str(message.get("content") or "") for message in messages)
