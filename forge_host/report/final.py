"""The report at the end of a run, however it ended. Its failure is a warning and never the run's.

write_final_report(Path("runs/x"))      # runs/x/report.html, or None
"""

from __future__ import annotations

from pathlib import Path

import structlog

log = structlog.get_logger()


def write_final_report(run_dir: Path) -> Path | None:
    """Write `report.html` into a run directory; None, after a warning, when that does not work."""
    try:
        from forge_host.report.html import write_report

        return write_report([run_dir])
    except Exception as error:  # it only shows what the run left; the run's own outcome must reach the user
        fix = f"forge-host report {run_dir}"
        log.warning("report not written", error=f"{type(error).__name__}: {error}", try_again=fix)
        return None
