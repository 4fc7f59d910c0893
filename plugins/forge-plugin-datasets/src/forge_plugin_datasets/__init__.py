"""Hugging Face datasets for forge-host. Declarations only; the `datasets` library is imported when one is opened.

    dataset: {path: openai/gsm8k, split: train}
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_datasets(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "hf",
            "forge_plugin_datasets.hf:open_dataset",
            "a Hugging Face dataset: hub name, folder, .parquet, .json or .csv file",
            config="forge_plugin_datasets.config:HuggingFace",
            requires=("datasets",),
        )
    ]
