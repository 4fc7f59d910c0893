"""Structured logs of the controller: everything as JSON to `logs/controller.jsonl`, warnings and errors to stderr too.

configure("runs/x/logs")
structlog.get_logger().info("transport chosen", transport="shm")
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog


def configure(log_dir: str, *, run: str) -> None:
    """Send structlog's events of this process to `log_dir/controller.jsonl` and, from warning up, to stderr."""
    file = open(os.path.join(log_dir, "controller.jsonl"), "a", encoding="utf-8", buffering=1)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            _Sink(file, run),
        ],
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )


class _Sink:
    """The last processor: writes the event, returns nothing that would be printed again."""

    def __init__(self, file: TextIO, run: str) -> None:
        self.file, self.run = file, run

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        self.file.write(json.dumps({"run": self.run, "role": "controller", **event}, default=str) + "\n")
        if method in ("warning", "error", "critical", "exception"):
            rest = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "level", "timestamp"))
            print(f"{event['level']}: {event['event']} {rest}".rstrip(), file=sys.stderr, flush=True)
        return ""
