"""Calling hooks: one typed method per hook, each timed, each error naming the plugin that raised it.

    findings = host.hooks.forge_check_plan(plan, host.info)
    host.hooks.forge_step_finished(run, report)
    print(host.hooks.timings["forge_step_finished"].seconds)

pluggy alone gives `Any` for a call and an exception without a name; this is what the host's code calls instead.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from forge_host.errors import ForgeError, PluginError
from forge_host.hookspecs import PROJECT, ForgeSpecs
from forge_host.plugins.suggest import listing
from forge_host.plugins.targets import cause

if TYPE_CHECKING:
    from forge_host.config import Plan
    from forge_host.types import CommandSpec, ComponentSpec, Finding, Group, HostInfo, RunInfo, StepReport


@attrs.define
class HookTiming:
    """What one hook has cost so far: calls, and seconds spent in all plugins together."""

    calls: int = 0
    seconds: float = 0.0


class Hooks:
    """The hooks of the loaded plugins; `plugins` maps names to implementations.

    Plugins are registered in sorted order, so calls have the same order on every machine (pluggy calls the one
    registered last first). Errors: an observer that raises is a `PluginError` naming plugin and hook; a `ForgeError`
    raised on purpose (a budget guard that stops the run) comes through as it is, with the plugin as its place.
    """

    def __init__(self, plugins: Mapping[str, Any], timings: dict[str, HookTiming] | None = None) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(ForgeSpecs)
        self.timings = {} if timings is None else timings
        for name in sorted(plugins):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecations were collected when the plugin was checked
                self._manager.register(plugins[name], name=name)

    def order(self, hook: str) -> list[str]:
        """Names of the plugins that implement `hook`, in the order they are called (wrappers first)."""
        return [impl.plugin_name for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls())]

    # --- declarations (the host reads these per plugin when loading; here over all of them) ---

    def forge_losses(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_losses", host=host)

    def forge_advantages(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_advantages", host=host)

    def forge_rewards(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_rewards", host=host)

    def forge_samplers(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_samplers", host=host)

    def forge_datasets(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_datasets", host=host)

    def forge_environments(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_environments", host=host)

    def forge_generators(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_generators", host=host)

    def forge_trainers(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_trainers", host=host)

    def forge_transports(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_transports", host=host)

    def forge_trackers(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_trackers", host=host)

    def forge_launchers(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_launchers", host=host)

    def forge_routers(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_routers", host=host)

    def forge_models(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_models", host=host)

    def forge_algorithms(self, host: HostInfo) -> list[ComponentSpec]:
        return self._collect("forge_algorithms", host=host)

    def forge_commands(self, host: HostInfo) -> list[CommandSpec]:
        return self._collect("forge_commands", host=host)

    # --- observers ---

    def forge_check_plan(self, plan: Plan, host: HostInfo) -> list[Finding]:
        """Every plugin's findings; the caller stops the run when one has the level "error"."""
        from forge_host.types import Finding

        findings = self._collect("forge_check_plan", plan=plan, host=host)
        for finding in findings:
            if not isinstance(finding, Finding):
                raise PluginError(
                    f"hook `forge_check_plan` returned {finding!r} in its list, expected Finding",
                    where=f"one of the plugins {listing(self.order('forge_check_plan'))}",
                )
        return findings

    def forge_run_started(self, run: RunInfo) -> None:
        self._call("forge_run_started", run=run)

    def forge_group_scored(self, run: RunInfo, group: Group) -> None:
        self._call("forge_group_scored", run=run, group=group)

    def forge_step_finished(self, run: RunInfo, report: StepReport) -> None:
        self._call("forge_step_finished", run=run, report=report)

    def forge_weights_published(self, run: RunInfo, version: int, seconds: float) -> None:
        self._call("forge_weights_published", run=run, version=version, seconds=seconds)

    def forge_checkpoint_saved(self, run: RunInfo, step: int, path: str) -> None:
        self._call("forge_checkpoint_saved", run=run, step=step, path=path)

    def forge_run_failed(self, run: RunInfo, error: BaseException) -> None:
        self._call("forge_run_failed", run=run, error=error)

    def forge_run_finished(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        self._call("forge_run_finished", run=run, summary=summary)

    # --- calling ---

    def _collect(self, hook: str, **arguments: Any) -> list[Any]:
        return self._call(hook, flatten=True, **arguments)

    def _call(self, hook: str, *, flatten: bool = False, **arguments: Any) -> list[Any]:
        start = time.perf_counter()
        try:
            results: list[Any] = getattr(self._manager.hook, hook)(**arguments)
            # Generators run here, inside the try, so that their errors are named too.
            return [item for result in results for item in result] if flatten else results
        except ForgeError as error:
            error.where = error.where or self._culprit(hook, error)
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"hook `{hook}` raised {cause(error)}",
                where=self._culprit(hook, error),
                fix="fix the plugin, or leave it out with `--no-plugin`",
            ) from error
        finally:
            timing = self.timings.setdefault(hook, HookTiming())
            timing.calls += 1
            timing.seconds += time.perf_counter() - start

    def _culprit(self, hook: str, error: BaseException) -> str:
        """ "plugin `x`": whose function is deepest in the traceback (pluggy does not say)."""
        owners: dict[Any, list[str]] = {}
        for impl in getattr(self._manager.hook, hook).get_hookimpls():
            owners.setdefault(getattr(impl.function, "__code__", None), []).append(impl.plugin_name)
        hits = [owners[frame.f_code] for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code in owners]
        names = hits[-1] if hits else self.order(hook)
        return f"plugin `{names[0]}`" if len(names) == 1 else f"one of the plugins {listing(names)}"
