"""Which TorchStore is installed, and whether it can work here; imports nothing of it.

check_torchstore()      # raises PluginError with the command that installs the right one

The releases on the package index (0.1.1, 0.1.2) cannot run with torchmonarch 0.7: they pin torch 2.9.0 and torchmonarch
0.1.2, and Monarch now refuses their `Controller`, which mixes sync and async endpoints. The main branch at REVISION
(2026-06-29) runs; it pins torchmonarch 0.4.1, which is why pip needs `--no-deps`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import TYPE_CHECKING

import structlog

from forge_host.api import Finding, PluginError
from forge_plugin_torchstore.shared import leftovers

if TYPE_CHECKING:
    from forge_host.config import Plan

REVISION = "5a4d5d3f4d653f2ed7cc913a66e49f822dfd6c1d"
REPOSITORY = "https://github.com/meta-pytorch/torchstore"
INSTALL = f"pip install --no-deps 'torchstore @ git+{REPOSITORY}@{REVISION}' pygtrie portpicker"
#: What it imports beside torch and Monarch.
NEEDS = ("pygtrie", "portpicker")

log = structlog.get_logger()


def check_torchstore() -> None:
    """Raises PluginError when TorchStore is missing or of a release that fails; warns of an untested revision."""
    try:
        found = distribution("torchstore")
    except PackageNotFoundError as error:
        raise PluginError("TorchStore is not installed", where="transport torchstore", fix=INSTALL) from error
    if found.version.startswith("0.1."):
        raise PluginError(
            f"torchstore {found.version} fails on torchmonarch 0.7: its Controller mixes sync and async endpoints",
            where="transport torchstore", fix=f"pip uninstall -y torchstore; {INSTALL}",
        )  # fmt: skip
    missing = [name for name in NEEDS if not _is_installed(name)]
    if missing:
        raise PluginError(
            f"TorchStore imports {' and '.join(missing)}, not installed here",
            where="transport torchstore", fix=f"pip install {' '.join(missing)}",
        )  # fmt: skip
    revision = installed_revision(found)
    if revision not in ("", REVISION):
        log.warning("transport torchstore: untested revision of TorchStore", found=revision[:12], tested=REVISION[:12])


def installed_revision(found: Distribution) -> str:
    """The commit that pip installed it from; empty when it came from a folder or a wheel."""
    note = json.loads(found.read_text("direct_url.json") or "{}")
    return str(note.get("vcs_info", {}).get("commit_id", ""))


def findings(plan: Plan) -> Iterable[Finding]:
    """When the plan's transport is TorchStore: an error when it cannot work, a warning of what dead runs have left.

    Nothing has been started yet.
    """
    if (plan.transport.plugin, plan.transport.name) != ("torchstore", "torchstore"):
        return []
    try:
        check_torchstore()
    except PluginError as error:
        return [Finding("error", f"transport torchstore: {error.message}", error.fix or "")]
    left = leftovers()
    return [Finding("warning", *left)] if left else []


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
