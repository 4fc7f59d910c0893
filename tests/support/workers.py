"""Monarch workers as `forge-host worker` starts them: hosts of their own on loopback, each with its environment."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def workers(*environments: Mapping[str, str], folder: Path, path: str = "") -> Iterator[list[str]]:
    """Addresses of one running worker for each environment; `path` is PYTHONPATH of those that set none."""
    running: list[subprocess.Popen[bytes]] = []
    addresses = []
    try:
        for number, environment in enumerate(environments):
            port = free_port()
            with open(folder / f"worker-{number}.log", "wb") as log:
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "forge_host.cli.main", "worker", "--port", str(port)],
                        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
                        cwd=folder,
                        stdout=log,
                        stderr=log,
                    )
                )
            addresses.append(f"127.0.0.1:{port}")
        yield addresses
    finally:
        for process in running:
            process.kill()
            process.wait()
