"""The host's own components, declared as plugin `builtin` through the same hooks as anybody's.

Why: the defaults get no private door, so whatever they can do a third party can do. Light; the targets import late.

    forge-host plugins show builtin
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_datasets(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "arithmetic", "forge_host.builtin.arithmetic:Arithmetic", "generated sums, differences and products"
        ),
        ComponentSpec(
            "jsonl", "forge_host.builtin.jsonl:JsonLines", "a .jsonl file of prompts, read line by line from disk"
        ),
        ComponentSpec(
            "curriculum", "forge_host.builtin.curriculum:Curriculum", "prompts not always or never solved, more often"
        ),
        ComponentSpec("mix", "forge_host.builtin.mix:Mix", "several datasets as one, in given shares"),
    ]


@hookimpl
def forge_trackers(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec("console", "forge_host.builtin.trackers:Console", "one line a step in the terminal"),
        ComponentSpec("jsonl", "forge_host.builtin.trackers:JsonLines", "metrics.jsonl in the run directory"),
    ]


# Each of these hooks lists what exists; add a line beside the component.


@hookimpl
def forge_losses(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("ppo-clip", "forge_host.builtin.losses:PPOClip", "clipped surrogate of token ratios (PPO)")]


@hookimpl
def forge_advantages(host: HostInfo) -> Iterable[ComponentSpec]:
    module, groups = "forge_host.builtin.advantages", ("groups",)
    return [
        ComponentSpec("batch", f"{module}:BatchBaseline", "reward minus the batch's mean"),
        ComponentSpec("batch-whitened", f"{module}:BatchWhitened", "return whitened over the batch's tokens"),
        ComponentSpec("group", f"{module}:GroupAdvantage", "the group's standard score of the reward", needs=groups),
        ComponentSpec(
            "group-then-batch-whitened", f"{module}:GroupThenBatchWhitened", "reward minus the group's mean, whitened",
            needs=groups,
        ),
        ComponentSpec("leave-one-out", f"{module}:LeaveOneOut", "reward minus the others' mean", needs=groups),
    ]  # fmt: skip


@hookimpl
def forge_samplers(host: HostInfo) -> Iterable[ComponentSpec]:
    return [ComponentSpec("group", "forge_host.builtin.samplers:GroupSampler", "trains on every scored group")]


@hookimpl
def forge_transports(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec("shm", "forge_host.builtin.transports.shm:SharedMemory", "shared memory of one host"),
        ComponentSpec("file", "forge_host.builtin.transports.file:Files", "safetensors files in a shared folder"),
    ]


@hookimpl
def forge_launchers(host: HostInfo) -> Iterable[ComponentSpec]:
    module = "forge_host.runtime"
    return [
        ComponentSpec("local", f"{module}.launch:LocalLauncher", "every process on this host"),
        ComponentSpec("attach", f"{module}.launch:AttachLauncher", "hosts where `forge-host worker` runs already"),
        ComponentSpec("slurm", f"{module}.slurm:SlurmLauncher", "nodes of a SLURM cluster, asked for by sbatch"),
        ComponentSpec("kubernetes", f"{module}.kubernetes:KubernetesLauncher", "pods of the MonarchMesh operator"),
    ]


@hookimpl
def forge_routers(host: HostInfo) -> Iterable[ComponentSpec]:
    module = "forge_host.runtime.routers"
    return [
        ComponentSpec("least-loaded", f"{module}:LeastLoaded", "the replica that answers the fewest requests"),
        ComponentSpec("round-robin", f"{module}:RoundRobin", "one replica after the other"),
        ComponentSpec("prefix-affinity", f"{module}:PrefixAffinity", "requests that begin alike go to one replica"),
        ComponentSpec("session-affinity", f"{module}:SessionAffinity", "requests of one session go to one replica"),
    ]
