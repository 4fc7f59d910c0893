"""`forge-host bench sync`: how fast transports move weights, against plain copies of the same bytes.

forge-host bench sync builtin/shm builtin/file --models 135M,0.6B
"""

from __future__ import annotations

import click


@click.command()
@click.argument("transports", nargs=-1, metavar="[TRANSPORT]...")
@click.option("--models", default="135M", metavar="A,B", help="Model shapes: 135M, 0.6B, 1.7B, 8B.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Versions published; the best counts.")
def sync(transports: tuple[str, ...], models: str, repeats: int) -> None:
    """Publish here, fetch and copy in another process."""
    from forge_host.loop.bench_sync import bench_sync

    for row in bench_sync(transports or ("builtin/shm", "builtin/file"), models=models.split(","), repeats=repeats):
        print(row, flush=True)
