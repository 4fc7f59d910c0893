"""Which transport a run uses, and why: `transport: auto` is decided here, when the places of the processes are known.

use, reason = choose_transport(plan, places)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_host.errors import UsageError
from forge_host.types import Use


def choose_transport(plan: Any, places: Mapping[str, Any]) -> tuple[Use, str]:
    """The transport component and one phrase that says why it.

    Args:
        plan: the resolved `forge_host.config.plan.Plan`.
        places: role to `forge_host.runtime.placement.Place`.

    Raises:
        UsageError: the configured transport cannot reach every generator.
    """
    use = plan.transport.use
    several = _several_hosts(plan.config.services)
    if use.ref != "auto":
        if use.ref in ("shm", "builtin/shm") and several:
            raise UsageError(
                f"transport shm stays within one host, but the run has services.{several}",
                fix="set transport: file with a shared transport.directory, or transport: auto",
            )
        return use, "configured"
    if several:
        directory = Path(plan.config.run_dir).absolute() / "sync"
        return Use("builtin/file", {"directory": str(directory)}), f"services.{several} spans hosts; files cross them"
    return Use("builtin/shm"), "trainer and generator share this host's memory"


def _several_hosts(services: Mapping[str, Any]) -> str:
    """The first role that is not on this host alone, as "role.hosts: n"; empty when all are here."""
    return next((f"{role}.hosts: {s.hosts}" for role, s in sorted(services.items()) if (s.hosts or 1) > 1), "")
