'''Every hook of the host, in the order a run calls them. This file is the reference that plugin authors read.

A plugin is a light module (or a `ForgePlugin` object) named by an entry point of the group `forge_host.plugins`:

    from forge_host.api import ComponentSpec, hookimpl

    FORGE_API = "1.0"

    @hookimpl
    def forge_rewards(host):
        return [ComponentSpec("brevity", "my_pkg.reward:Brevity", "shorter replies score higher")]

*Declaration hooks* are called once when the plugin is loaded. They return records, do no work, import nothing heavy
(no torch, vllm, monarch, transformers) and cannot be wrappers; the order of plugins does not matter.

*Observer hooks* are called once per run, group or step, never per token or sample, in the process that drives the run.
Plugins are called in the order `forge-host hooks show NAME` prints; `tryfirst`, `trylast` and `wrapper` change it. An
observer that raises stops the run with an error that names it.

An implementation may leave arguments out, and must not give them defaults.
'''

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from forge_host.config import Plan
    from forge_host.types import (
        CommandSpec,
        ComponentSpec,
        Finding,
        Group,
        HostInfo,
        Kind,
        RunInfo,
        StepReport,
    )  # fmt: skip

PROJECT = "forge_host"
_marker = pluggy.HookspecMarker(PROJECT)
_F = TypeVar("_F", bound=Callable[..., Any])

#: The declaration hook of each kind of component.
KIND_HOOKS: dict[Kind, str] = {
    "loss": "forge_losses",
    "advantage": "forge_advantages",
    "reward": "forge_rewards",
    "sampler": "forge_samplers",
    "dataset": "forge_datasets",
    "environment": "forge_environments",
    "generator": "forge_generators",
    "trainer": "forge_trainers",
    "transport": "forge_transports",
    "tracker": "forge_trackers",
    "launcher": "forge_launchers",
    "router": "forge_routers",
    "model": "forge_models",
    "algorithm": "forge_algorithms",
}
DECLARATION_HOOKS: tuple[str, ...] = (*KIND_HOOKS.values(), "forge_commands")
OBSERVER_HOOKS: tuple[str, ...] = (
    "forge_check_plan", "forge_run_started", "forge_group_scored", "forge_step_finished", "forge_weights_published",
    "forge_checkpoint_saved", "forge_run_failed", "forge_run_finished",
)  # fmt: skip
HOOKS = DECLARATION_HOOKS + OBSERVER_HOOKS


def hookspec(*, since: str, deprecated: Warning | None = None) -> Callable[[_F], _F]:
    """Marks a hook. `since` is the host API that has it; `deprecated` (`removed_in_2(...)`) warns its implementers."""

    def mark(function: _F) -> _F:
        function.forge_since = since  # type: ignore[attr-defined]
        function.forge_deprecated = str(deprecated) if deprecated else ""  # type: ignore[attr-defined]
        return _marker(function, warn_on_impl=deprecated)

    return mark


class ForgeSpecs:
    """The hooks as pluggy sees them; subclass `ForgePlugin` instead of this."""

    # --- declarations: once, when the plugin is loaded ---

    @hookspec(since="1.0")
    def forge_losses(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Losses: callables over LOSS_ARGUMENTS that return per-token losses [B, T] (`forge_host.api.Loss`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_advantages(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Advantage estimators: rewards [B] to advantages [B] or [B, T] (`forge_host.api.Advantage`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_rewards(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Rewards: one response to a score, plain or async (`forge_host.api.Reward`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_samplers(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Samplers: which scored groups are trained on (`forge_host.api.Sampler`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_datasets(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Datasets: prompts in a stable order (`forge_host.api.Dataset`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_environments(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Environments: multi-turn tasks (`forge_host.api.Environment`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_generators(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Generators: actors that sample responses (`forge_host.api.Generator`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_trainers(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Trainers: actors that make optimizer steps (`forge_host.api.Trainer`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_transports(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Transports: move weights from trainer to generators (`forge_host.api.Transport`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_trackers(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Trackers: receive the metrics of finished steps (`forge_host.api.Tracker`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_launchers(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Launchers: get the hosts that a run's processes run on (`forge_host.api.Launcher`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_routers(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Routers: which replica of a service takes a request (`forge_host.api.Router`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_models(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Model sources: give a local Hugging Face folder (`forge_host.api.ModelSource`)."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_algorithms(self, host: HostInfo) -> Iterable[ComponentSpec]:
        """Algorithms: an attrs class of a config section's keys whose `build()` returns `AlgorithmParts`."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_commands(self, host: HostInfo) -> Iterable[CommandSpec]:
        """Commands added to `forge-host`; a name that the host or another plugin has is an error."""
        raise NotImplementedError

    # --- observers: during a run ---

    @hookspec(since="1.0")
    def forge_check_plan(self, plan: Plan, host: HostInfo) -> Iterable[Finding] | None:
        """Called before any process starts, with the resolved plan; `plan.config` is the `RunConfig`.

        Returns findings about combinations that no single component can see. Level "error" stops the run.
        """
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_run_started(self, run: RunInfo) -> None:
        """Called when every role is ready, before the first prompt."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_group_scored(self, run: RunInfo, group: Group) -> None:
        """Called for every scored group, before the sampler's verdict."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_step_finished(self, run: RunInfo, report: StepReport) -> None:
        """Called after every optimizer step, with the step's metrics."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_weights_published(self, run: RunInfo, version: int, seconds: float) -> None:
        """Called when generators hold `version`; `seconds` from the start of the publish to the last load."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_checkpoint_saved(self, run: RunInfo, step: int, path: str) -> None:
        """Called when the checkpoint folder `path` is committed."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_run_failed(self, run: RunInfo, error: BaseException) -> None:
        """Called when a started run fails or is interrupted, before its processes are stopped."""
        raise NotImplementedError

    @hookspec(since="1.0")
    def forge_run_finished(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Called when a run has reached its last step; `summary` is what the run prints at its end."""
        raise NotImplementedError


class ForgePlugin(ForgeSpecs):
    """Base class for a plugin written as a class: mypy then checks each hook's arguments and result.

        class Brevity(ForgePlugin):
            FORGE_API = "1.0"

            @hookimpl
            def forge_rewards(self, host: HostInfo) -> Iterable[ComponentSpec]:
                return [ComponentSpec("brevity", "my_pkg.reward:Brevity", "shorter replies score higher")]

    Only methods marked with `@hookimpl` are hooks; the entry point names the class or an instance
    (`brevity = "my_pkg:Brevity"`).
    """

    FORGE_API: str
