"""The verdict and the findings of a run as plain lines, for a terminal or a log.

print_brief("runs/quickstart-20261201-111745")
"""

from __future__ import annotations

from pathlib import Path

from forge_host.report.findings import findings, verdict
from forge_host.report.rundata import load_run


def print_brief(path: str | Path) -> None:
    """Raises UsageError when `path` is no run directory."""
    run = load_run(path)
    print(f"{run.name}: {verdict(run)[1]}")
    for finding in findings(run):
        print(f"{finding.level}: {finding.title}: {finding.evidence}")
        print(f"    try: {finding.remedy}")
    for note in run.notes:
        print(f"note: {note}")
