"""The keys of the dataset `hf`. Light: the `datasets` library is imported by `forge_plugin_datasets.hf`.

    HuggingFace(path="openai/gsm8k", split="test")
"""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, lt, optional

from forge_host.api import UsageError, field


@attrs.frozen(kw_only=True)
class HuggingFace:
    """What to load, and which of its columns are what. Known forms (GSM8K, MATH, chats, Alpaca) need no columns."""

    path: str = field(help="hub name (owner/name), local folder, .parquet, .json or .csv file")
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
    holdout: float = field(
        default=0.0, help="fraction of the split's prompts held out, by hash", validator=and_(ge(0), lt(1))
    )
    held_out: bool = field(default=False, help="give the prompts that holdout keeps back instead of the others")
    deduplicate: bool = field(default=False, help="leave out rows whose prompt was there before")
    limit: int | None = field(default=None, help="use only the first so many prompts", validator=optional(gt(0)))

    def __attrs_post_init__(self) -> None:
        if "{prompt}" not in self.template:
            raise UsageError(f"dataset `hf`: template {self.template!r} has no {{prompt}}")
        if self.held_out and self.holdout == 0:
            raise UsageError("dataset `hf`: held_out has no prompts with holdout 0", fix="set holdout, say to 0.05")
