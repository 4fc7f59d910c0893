"""A calculator that a model may use while it solves word problems. Declarations only.

environment: {use: calculator, max_calls: 4}
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_host.api import ComponentSpec, HostInfo, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_environments(host: HostInfo) -> Iterable[ComponentSpec]:
    return [
        ComponentSpec(
            "calculator", "forge_plugin_calculator.environment:Calculator", "word problems with a calculator at hand"
        )
    ]
