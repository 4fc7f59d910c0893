"""What a run leaves in the process table: every process of it inherits FORGE_TEST_MARK."""

import time
from pathlib import Path

#: Why a killed process is gone, as a pattern: Monarch knows the signal, but may say so after the host has looked.
KILLED = r"\((Killed\(sig=9\)|ended)\)"


def assert_none_left(mark: str, seconds: float = 5.0) -> None:
    """No live process of this host has the mark in its environment, or soon none has."""
    deadline = time.monotonic() + seconds
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"left behind: {left}"


def processes_with(text: str) -> list[tuple[int, str]]:
    """Live processes of this host whose environment holds `text`; every process of a run inherits FORGE_TEST_MARK."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except (OSError, IndexError):
            continue
        if state != "Z" and text.encode() in environment:
            found.append((int(entry.name), command[:80].decode(errors="replace")))
    return found
