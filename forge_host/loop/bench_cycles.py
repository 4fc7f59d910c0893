"""Does a transport leak: thousands of versions of a small model, and what two processes hold before and after.

    for row in bench_cycles("builtin/shm", cycles=10_000):
        print(row)

The first tenth warms up; then memory in use, open file descriptors and files in /dev/shm of the publisher and of a
reader in another process are noted, and again after every tenth of the cycles.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import attrs

from forge_host.errors import RunError
from forge_host.loop.bench_sync import ask, build

NUM_TENSORS = 32
TENSOR_SHAPE = (64, 64)  #: float32: 512 KiB in all
SHM = "/dev/shm"


@attrs.frozen(kw_only=True)
class Held:
    """What the two processes hold after so many cycles; memory is what is resident and not shared, in bytes."""

    cycle: int
    seconds: float
    publisher_bytes: int
    publisher_files: int
    reader_bytes: int
    reader_files: int
    dev_shm_files: int
    dev_shm_bytes: int


def bench_cycles(transport: str, *, cycles: int, config: Mapping[str, Any] | None = None) -> Iterator[Held]:
    """Eleven rows: after the warm-up, then after every tenth of the cycles; every value read is checked.

    Raises:
        UsageError, PluginError: no such transport or setting.
        RunError: the transport fails, or a reader gets another version than was published.
    """
    import torch

    settings = dict(config or {})
    tensors = {f"{i}": torch.zeros(TENSOR_SHAPE) for i in range(NUM_TENSORS)}
    part = max(1, cycles // 10)
    with closing(build(transport, settings, "bench-cycles")) as sender:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        reader = context.Process(target=_read, args=(there, transport, settings), daemon=True)
        reader.start()
        there.close()
        version = 0
        began = time.perf_counter()
        for row in range(11):
            for _ in range(part):
                version += 1
                for tensor in tensors.values():
                    tensor.fill_(version)
                seen = ask(here, sender.publish(version, tensors.items()), transport)
                if seen != (version, version):
                    raise RunError(f"{transport}: a reader got {seen} instead of version {version}")
            memory, files = ask(here, "held", transport)
            own, own_files = held()
            shared = _dev_shm()
            yield Held(
                cycle=row * part, seconds=time.perf_counter() - began, publisher_bytes=own, publisher_files=own_files,
                reader_bytes=memory, reader_files=files, dev_shm_files=shared[0], dev_shm_bytes=shared[1],
            )  # fmt: skip
        here.send(None)
        reader.join(30)


def held() -> tuple[int, int]:
    """This process's resident memory without what it shares (bytes), and its open file descriptors."""
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


def _dev_shm() -> tuple[int, int]:
    """Files of this user in /dev/shm and their bytes; other programs' count too."""
    count = size = 0
    for entry in os.scandir(SHM):
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed meanwhile
        if stat.st_uid == os.getuid():
            count, size = count + 1, size + stat.st_size
    return count, size


def _read(pipe: Any, transport: str, config: Any) -> None:
    try:
        with closing(build(transport, config, "bench-cycles")) as reader:
            while (message := pipe.recv()) is not None:
                if message == "held":
                    pipe.send(held())
                    continue
                values = [(float(tensor.min()), float(tensor.max())) for _, tensor in reader.fetch(message)]
                if len(values) != NUM_TENSORS:
                    raise RunError(f"{transport}: {len(values)} tensors of {NUM_TENSORS} came")
                pipe.send((min(low for low, _ in values), max(high for _, high in values)))
    except Exception as error:  # the caller raises it
        pipe.send(error)
