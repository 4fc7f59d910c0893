"""Several trackers as one. A tracker that raises is detached with a warning; the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from forge_host.api import Tracker
from forge_host.types import RunInfo, StepReport

log = structlog.get_logger()


class Trackers:
    """Forwards to each tracker by name."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self.active = dict(trackers)

    def start(self, run: RunInfo) -> None:
        self._each("start", lambda t: t.start(run))

    def log(self, report: StepReport) -> None:
        self._each("log", lambda t: t.log(report))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._each("finish", lambda t: t.finish(summary))

    def _each(self, what: str, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.active.items()):
            try:
                call(tracker)
            except Exception as error:
                # Third-party code that only watches must not end a run; it is loud and it stops being called.
                log.warning("tracker detached", tracker=name, during=what, error=f"{type(error).__name__}: {error}")
                del self.active[name]
