"""Supervised fine-tuning for forge-host: `algorithm: sft`. Declarations only.

    forge-host sft config.yaml
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("sft", "forge_plugin_sft.loss:SFTLoss", "negative log-likelihood of the response")]


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("sft", "forge_plugin_sft.algorithm:SFT", "supervised fine-tuning on given responses")]


@hookimpl
def forge_datasets(host: HostInfo) -> Iterable[ComponentSpec]:
    summary = "a .jsonl file of chats: messages, ShareGPT conversations, Alpaca instructions, prompt and response"
    return [ComponentSpec("chats", "forge_plugin_sft.chats:Chats", summary)]
