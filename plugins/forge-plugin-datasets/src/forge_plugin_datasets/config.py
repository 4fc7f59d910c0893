"""The keys of the dataset `hf`. Light: the `datasets` library is imported by `forge_plugin_datasets.hf`.

    HuggingFace(path="openai/gsm8k", split="test")
"""

from __future__ import annotations

import attrs
from attrs.validators import gt, optional

from forge_host.api import UsageError, field


@attrs.frozen(kw_only=True)
class HuggingFace:
    """What to load, and which of its columns are what. Known forms (GSM8K, MATH, chats, Alpaca) need no columns."""

    path: str = field(help="hub name (owner/name), local folder, .parquet or .json file")
    name: str | None = field(default=None, help="subset, as main of openai/gsm8k")
    split: str = field(default="train", help="split, or a slice of one: train[:95%]")
    revision: str | None = field(default=None, help="branch, tag or commit on the hub")
    streaming: bool = field(default=False, help="read while training instead of downloading first")
    prompt_field: str | None = field(default=None, help="column of the prompt, text or messages; null finds it")
    target_field: str | None = field(default=None, help="column of the right answer; null finds it, or has none")
    answer_after: str | None = field(
        default=None, help="the target is what follows the last of these in its column, as #### of GSM8K"
    )
    category_field: str | None = field(default=None, help="column by which evaluation is broken down; null finds it")
    template: str = field(default="{prompt}", help="text put around every text prompt, which replaces {prompt}")
    limit: int | None = field(default=None, help="use only the first so many rows", validator=optional(gt(0)))

    def __attrs_post_init__(self) -> None:
        if "{prompt}" not in self.template:
            raise UsageError(f"dataset `hf`: template {self.template!r} has no {{prompt}}")
