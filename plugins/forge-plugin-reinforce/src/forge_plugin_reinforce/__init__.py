"""REINFORCE, RLOO, REINFORCE++ and its baseline variant for forge-host. Declarations only.

    forge-host run config.yaml --plugins reinforce --set algorithm=rloo
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"
_LOSSES, _ALGORITHMS = "forge_plugin_reinforce.losses", "forge_plugin_reinforce.algorithms"
_HOST = "forge_host.builtin.advantages"


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    yield ComponentSpec("reinforce", f"{_LOSSES}:Reinforce", "policy gradient, weighted by a clamped ratio")
    yield ComponentSpec("rloo", f"{_LOSSES}:RLOOLoss", "clipped ratio of the response", needs=("sequence-advantages",))


@hookimpl
def forge_advantages(host: HostInfo) -> Iterable[ComponentSpec]:
    groups = ("groups",)
    yield ComponentSpec("reinforce", f"{_HOST}:BatchBaseline", "reward minus the batch's mean")
    yield ComponentSpec("rloo", f"{_HOST}:LeaveOneOut", "reward minus the others' mean", needs=groups)
    yield ComponentSpec("reinforce-pp", f"{_HOST}:BatchWhitened", "return whitened over the batch's tokens")
    yield ComponentSpec("reinforce-pp-baseline", f"{_HOST}:GroupThenBatchWhitened", "whitened", needs=groups)


@hookimpl
def forge_algorithms(host: HostInfo) -> Iterable[ComponentSpec]:
    yield ComponentSpec("reinforce", f"{_ALGORITHMS}:REINFORCE", "policy gradient with torchforge's ReinforceLoss")
    yield ComponentSpec("rloo", f"{_ALGORITHMS}:RLOO", "leave-one-out baseline (arXiv 2402.14740)")
    yield ComponentSpec("reinforce-pp", f"{_ALGORITHMS}:ReinforcePP", "batch-whitened returns (arXiv 2501.03262)")
    yield ComponentSpec("reinforce-pp-baseline", f"{_ALGORITHMS}:ReinforcePPBaseline", "the same with a group baseline")
