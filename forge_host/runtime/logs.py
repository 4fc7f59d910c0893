"""Structured logs of every process of a run: JSON lines in `logs/MESH.RANK.jsonl`, here in `logs/controller.jsonl`.

    configure("runs/x/logs", "trainer-0.1", run="x", role="trainer", rank=1)
    structlog.get_logger().info("transport chosen", transport="shm")
    logging.getLogger("any.library").warning("also here")

    {"run": "x", "role": "trainer", "rank": 1, "step": 3, "event": "also here", "level": "warning", "timestamp": ...}

`step` is the one that the run was in, so that the lines of all processes can be joined. Events go to the terminal too
(of a remote process: to its `.log` file, which has everything else that it prints). Imports neither torch nor monarch.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

LEVELS = ("debug", "info", "warning", "error", "critical")
_STEP = ".step"  #: file in the log folder that holds the number of the step in progress
_BLANK = 20  # characters of that file
_sink: _Sink | None = None


def configure(
    log_dir: str, name: str, *, echo: str = "warning", library_level: int | None = None, **fields: Any
) -> None:
    """Send this process's structlog events and its libraries' `logging` records to `log_dir/name.jsonl`.

    Args:
        echo: structlog's events of this level and above are also written to stderr.
        library_level: of the root logger; libraries that set no level of their own log from there on.
        fields: in every line; `run`, `role`, `rank`, ...
    """
    global _sink
    _sink = _Sink(log_dir, name, fields, LEVELS.index(echo))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            _sink,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    if library_level is not None:
        logging.getLogger().setLevel(library_level)
    if not isinstance(logging.getLogRecordFactory(), _Records):
        # Many libraries have handlers of their own and pass nothing on to the root logger; every record is made here.
        logging.setLogRecordFactory(_Records(logging.getLogRecordFactory()))


def to_stderr() -> None:
    """Until `configure`: warnings and worse go to stderr. structlog's default is stdout, amid `--json`."""
    structlog.reset_defaults()
    structlog.configure(
        # A processor that drops, not a logger that filters: `structlog.testing.capture_logs` sees what was dropped.
        processors=[_drop_quiet, *structlog.get_config()["processors"]],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _drop_quiet(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if method in ("debug", "info"):
        raise structlog.DropEvent
    return event


def note_step(log_dir: str, step: int) -> None:
    """Tell every process of the run which step is in progress."""
    descriptor = os.open(os.path.join(log_dir, _STEP), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, str(step).ljust(_BLANK).encode(), 0)
    finally:
        os.close(descriptor)


class _Sink:
    """The last processor: writes the event, returns nothing that would be printed again."""

    def __init__(self, log_dir: str, name: str, fields: Mapping[str, Any], echo: int) -> None:
        self._dir, self._path, self._fields, self._echo = log_dir, os.path.join(log_dir, f"{name}.jsonl"), fields, echo
        self._out = self._step_file = -1
        self._broken = False

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        self.write(event)
        level = "error" if method == "exception" else method
        if level in LEVELS and LEVELS.index(level) >= self._echo:
            rest = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "level", "timestamp"))
            print(f"{event['level']}: {event['event']} {rest}".rstrip(), file=sys.stderr, flush=True)
        return ""

    def write(self, event: Mapping[str, Any]) -> None:
        """One line, in one system call: processes that share a file do not mix their lines."""
        line = json.dumps({**self._fields, "step": self._step(), **event}, default=str, ensure_ascii=False) + "\n"
        try:
            if self._out < 0:
                self._out = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._out, line.encode(errors="replace"))
        except OSError as error:  # a full disk: the run's own writes report it, and logging must not hide its cause
            if not self._broken:
                self._broken = True
                print(f"warning: {self._path} cannot be written: {error.strerror}", file=sys.stderr, flush=True)

    def _step(self) -> int | None:
        try:
            if self._step_file < 0:
                self._step_file = os.open(os.path.join(self._dir, _STEP), os.O_RDONLY)
            return int(os.pread(self._step_file, _BLANK, 0) or 0)
        except (OSError, ValueError):  # nothing noted yet, or a host that does not share the run directory
            return None


class _Records:
    """Makes `logging`'s records as `make` does, and hands each to the sink."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        # Records copied between processes are made empty.
        if _sink is not None and isinstance(record.levelno, int) and not _for_nobody(record):
            seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            event = {
                "event": _message(record),
                "logger": record.name,
                "level": str(record.levelname).lower(),
                "timestamp": f"{seconds}.{int(record.msecs):03d}Z",
            }
            if record.exc_info and record.exc_info[0] is not None:
                event["exception"] = logging.Formatter().formatException(record.exc_info)
            _sink.write(event)
        return record


def _for_nobody(record: logging.LogRecord) -> bool:
    """Whether its library writes it nowhere: a trace that is off, passed to no handler. TorchTitan's has 800 lines."""
    if record.levelno >= logging.WARNING:
        return False
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and not logger.handlers:
        if not logger.propagate:
            return True
        logger = logger.parent
    return False


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # a library's wrong format string must not end the process that logs it
        return f"{record.msg} ({type(error).__name__}: {error})"
