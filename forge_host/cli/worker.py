"""`forge-host worker`: makes this machine a host of runs that are started elsewhere with `launcher: attach`.

    forge-host worker --port 22222                      # for runs of this machine
    forge-host worker --advertise node7 --port 22222    # for runs of other machines, which reach it as node7:22222

It runs until it is stopped, one run after another. Whoever reaches the port can run code here: open it on a network of
your own only.
"""

from __future__ import annotations

import os
import socket
import sys

import click

from forge_host.errors import UsageError


@click.command(short_help="Make this machine a host of runs started elsewhere.")
@click.option("--port", default=22222, show_default=True, type=click.IntRange(1, 65535), help="TCP port to listen on.")
@click.option(
    "--advertise", metavar="NAME", default=None,
    help="Name or address that other machines reach this one by; it then listens on every interface.",
)  # fmt: skip
def worker(port: int, advertise: str | None) -> None:
    """Run a Monarch worker that takes the processes of runs with `launcher: {use: attach, workers: [NAME:PORT]}`.

    Its processes have this environment: this Python, these plugins, these variables. Whoever reaches the port can run
    code here.
    """
    bind = "0.0.0.0" if advertise else "127.0.0.1"
    name = advertise or bind
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except OSError as error:
            raise UsageError(
                f"port {port} of {bind} cannot be used: {error.strerror}", fix="choose another --port"
            ) from None
    # The processes of a run start from this; the run's own interpreter may be elsewhere, or not be here at all.
    os.environ["FORGE_HOST_PYTHON"] = sys.executable

    from monarch.actor import run_worker_loop_forever

    import forge_host.runtime  # noqa: F401 - sets what Monarch reads when it is imported

    print(f"worker at {name}:{port}, Python {sys.executable}", flush=True)
    run_worker_loop_forever(address=f"tcp://{name}:{port}@tcp://{bind}:{port}", ca="trust_all_connections")
