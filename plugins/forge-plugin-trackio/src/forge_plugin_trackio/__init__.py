"""Trackio for forge-host. Declarations only.

forge-host run quickstart --set trackers=[console,jsonl,trackio]
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_trackers(host: HostInfo) -> Iterable[ComponentSpec]:
    target = "forge_plugin_trackio.tracker:Trackio"
    return [ComponentSpec("trackio", target, "Trackio's dashboard on this machine, no account needed")]
