"""A prompt to the token ids that the generator gets: system message, chat template, tokenizer. Text is tokenised once.

encode = PromptEncoder("path/to/hf-folder", system="Reply with the result only.", chat=True)
encode(Prompt(id="1", text="What is 2 + 3?"))        # [1, 9690, ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_host.errors import UsageError
from forge_host.types import Prompt


def prompt_budget(config: Any, plan: Any) -> int:
    """Most tokens of a prompt: what training.seq_len leaves beside the response, or dataset.max_prompt_tokens."""
    budget: int = config.training.seq_len - plan.sampling.max_tokens
    limit = config.dataset.max_prompt_tokens
    return budget if limit is None else min(budget, limit)


class PromptEncoder:
    """Loads the tokenizer of a local Hugging Face folder; calls give token ids.

    Raises:
        UsageError: the folder has no tokenizer, or a chat prompt meets a model without a chat template.
    """

    def __init__(self, model_path: str, *, system: str | None, chat: bool) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        except (OSError, ValueError) as error:
            raise UsageError(f"no tokenizer in {model_path} ({error})", fix="save it there with the model") from error
        self.model_path, self.system, self.chat = model_path, system, chat

    def messages(self, prompt: Prompt) -> list[Mapping[str, Any]] | None:
        """The chat that the prompt becomes, or None when its text is fed as it is."""
        if prompt.messages is not None:
            messages = list(prompt.messages)
        elif self.chat and self.tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt.text}]
        else:
            return None
        if self.system is not None and messages[0].get("role") != "system":
            messages.insert(0, {"role": "system", "content": self.system})
        return messages

    def render(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text whose tokens the generator gets. `tools` are JSON schemas for the template to list."""
        messages = self.messages(prompt)
        if messages is None:
            assert prompt.text is not None
            return prompt.text if self.system is None else f"{self.system}\n\n{prompt.text}"
        if not self.tokenizer.chat_template:
            raise UsageError(
                f"prompt {prompt.id} is a chat but the tokenizer in {self.model_path} has no chat template",
                fix="use an instruct model or a dataset with plain text and dataset.chat: false",
            )
        if messages[-1].get("role") == "assistant":
            raise UsageError(
                f"prompt {prompt.id} ends with the assistant's turn, so nothing is left to be answered",
                fix="train on such conversations with `forge-host sft`, or leave their last turn out of the data",
            )
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        return self.written(messages, prompt.id, add_generation_prompt=True, **given)

    def written(self, messages: Sequence[Mapping[str, Any]], id: str, **options: Any) -> str:
        """The messages as the chat template writes them; `options` are the template's.

        Raises:
            UsageError: the template refuses them, as many do for a system message or two turns of the same role.
        """
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
        except Exception as error:  # the model's own program: it may raise whatever it likes
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UsageError(
                f"the chat template of {self.model_path} cannot write {id} with the roles {roles} "
                f"({type(error).__name__}: {error})",
                fix="change the conversation, give each content as text, or leave out dataset.system",
            ) from error

    def __call__(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        # A chat template writes its own special tokens; plain text gets the tokenizer's.
        is_chat = self.messages(prompt) is not None
        return list(self.tokenizer(self.render(prompt, tools), add_special_tokens=not is_chat)["input_ids"])
