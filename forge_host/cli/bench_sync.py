"""`forge-host bench sync`: how fast transports move weights, against plain copies of the same bytes.

    forge-host bench sync shm file --models 135M,0.6B
    forge-host bench sync cuda-ipc/cuda-ipc --device cuda --models 0.6B,1.7B
    forge-host bench sync shm --cycles 10000
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from forge_host.cli.tables import print_json, print_table
from forge_host.errors import RunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_host.loop.bench_cycles import Held
    from forge_host.loop.bench_sync import SyncTimes


@click.command()
@click.argument("transports", nargs=-1, metavar="[TRANSPORT]...")
@click.option("--models", default="135M,0.6B", show_default=True, metavar="A,B", help="Of 135M, 0.6B, 1.7B and 8B.")
@click.option("--repeats", default=7, show_default=True, type=click.IntRange(1), help="Versions; the best counts.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda or cuda:N.")
@click.option("--reader-device", metavar="DEVICE", help="Where the reader's copies are, if not on --device.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the transports.")
@click.option("--cycles", type=click.IntRange(10), help="Instead: so many versions of a small model; does it leak?")
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
def sync(
    transports: tuple[str, ...], models: str, repeats: int, device: str, reader_device: str | None,
    settings: tuple[str, ...], cycles: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Publish here, fetch and copy in another process (default: shm and file)."""
    names = transports or ("builtin/shm", "builtin/file")
    config = dict(_setting(text) for text in settings)
    if cycles is not None:
        _cycles(names, cycles, config, as_json)
        return
    from forge_host.loop.bench_sync import bench_sync, no_room

    _check_device(device)
    _check_device(reader_device or device)
    asked = [name.strip() for name in models.split(",") if name.strip()]
    reasons = {model: no_room(model, device) for model in asked}
    for reason in filter(None, reasons.values()):
        print(f"left out: {reason}", file=sys.stderr)
    fitting = [model for model in asked if not reasons[model]]
    if not fitting:
        raise RunError("no model size fits into memory", fix="take a smaller one with --models")
    rows: list[SyncTimes] = []
    for row in bench_sync(
        names, models=fitting, repeats=repeats, config=config, device=device, reader_device=reader_device
    ):
        rows.append(row)
        print(f"{row.transport} {row.model}: {row.publish_s + row.fetch_s:.3f} s", file=sys.stderr)
    _print_times(rows, as_json)


def _print_times(rows: Sequence[SyncTimes], as_json: bool) -> None:
    import attrs

    from forge_host.loop.bench_sync import fit

    fits = {}
    for name in dict.fromkeys(row.transport for row in rows):
        mine = [row for row in rows if row.transport == name]
        if len(mine) > 1:
            fits[name] = fit(mine)
    if as_json:
        print_json(
            {
                "rows": [{**attrs.asdict(row), "bytes_per_s": row.rate, "ratio": row.ratio} for row in rows],
                "fits": {name: {"fixed_s": fixed, "s_per_byte": slope} for name, (fixed, slope) in fits.items()},
            }
        )
        return
    plain = "2 memcpys" if rows[0].device == "cpu" else "2 device copies"
    table = [
        (
            row.transport, row.model, f"{row.num_bytes / 1e6:.0f}", str(row.num_tensors), f"{row.publish_s * 1e3:.1f}",
            f"{row.fetch_s * 1e3:.1f}", f"{row.rate / 1e9:.2f}", f"{2 * row.copy_s * 1e3:.1f}", f"{row.ratio:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    heads = ("transport", "model", "MB", "tensors", "publish ms", "fetch ms", "GB/s", f"{plain} ms", "ratio")
    print_table(heads, table)
    for name, (fixed, slope) in fits.items():
        print(f"{name}: {fixed * 1e3:.1f} ms + {slope * 1e12:.0f} ms/GB, fitted over the sizes")


def _cycles(names: Sequence[str], cycles: int, config: dict[str, Any], as_json: bool) -> None:
    import attrs

    from forge_host.loop.bench_cycles import bench_cycles

    found: dict[str, list[Held]] = {}
    for name in names:
        found[name] = []
        for row in bench_cycles(name, cycles=cycles, config=config):
            found[name].append(row)
            print(f"{name}: {row.cycle} cycles, {row.seconds:.0f} s", file=sys.stderr)
    if as_json:
        print_json({name: [attrs.asdict(row) for row in rows] for name, rows in found.items()})
        return
    heads = (
        "transport", "cycles", "s", "publisher MB", "its files", "reader MB", "its files", "/dev/shm files", "MB",
    )  # fmt: skip
    print_table(heads, [_held(name, row) for name, rows in found.items() for row in (rows[0], rows[5], rows[-1])])


def _held(name: str, row: Held) -> tuple[str, ...]:
    return (
        name, str(row.cycle), f"{row.seconds:.0f}", f"{row.publisher_bytes / 1e6:.1f}", str(row.publisher_files),
        f"{row.reader_bytes / 1e6:.1f}", str(row.reader_files), str(row.dev_shm_files),
        f"{row.dev_shm_bytes / 1e6:.1f}",
    )  # fmt: skip


def _setting(text: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"--set {text}: write KEY=VALUE")
    return key, yaml.safe_load(value)


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise UsageError(f"no device {device!r}", where="--device", fix="take cpu, cuda or cuda:N")
    if not torch.cuda.is_available() or int(number or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {device} is not here", where="--device", fix="take --device cpu")
