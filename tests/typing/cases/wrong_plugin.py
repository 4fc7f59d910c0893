"""Mistakes that mypy must find; each line with one names the error code it expects."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from forge_host.api import (
    ComponentSpec,
    ForgePlugin,
    Group,
    HostInfo,
    RunInfo,
    Sampler,
    StepReport,
    hookimpl,
)


class Wrong(ForgePlugin):
    FORGE_API = 1.0  # expect: assignment

    @hookimpl
    def forge_rewards(self, host: HostInfo) -> str:  # expect: override
        return "brevity"

    @hookimpl
    def forge_losses(self, host: int) -> Iterable[ComponentSpec]:  # expect: override
        return [ComponentSpec("plain", 3, "policy gradient")]  # expect: arg-type

    @hookimpl
    def forge_step_finished(self, run: RunInfo, report: StepReport, extra: int) -> None:  # expect: override
        print(report.metrics["reward/mean"] + "x")  # expect: operator

    @hookimpl
    def forge_datasets(self, host: HostInfo) -> Iterable[ComponentSpec]:
        return [ComponentSpec("a", "b:C")]  # expect: call-arg


@attrs.frozen
class NoVerdict:
    def verdict(self, group: Group) -> bool:
        return True


sampler: Sampler = NoVerdict()  # expect: assignment
