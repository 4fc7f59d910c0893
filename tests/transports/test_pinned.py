"""Page-locking of shared memory for a GPU, with a stand-in for the CUDA runtime that checks what it is asked."""

from contextlib import closing

import pytest
import torch

from forge_host.builtin.transports import pinned, shm
from forge_host.builtin.transports.shm import SharedMemory


class Runtime:
    """Locks ranges; refuses what CUDA refuses: a range twice, one that is not mapped, one that is not locked."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.calls = 0
        self.refuse = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert address % 4096 == 0 and size % 4096 == 0 and mapped(address, size) and flags == 0
        assert not any(begin < address + size and address < begin + n for begin, n in self.locked.items())
        self.calls += 1
        if not self.refuse:
            self.locked[address] = size
        return self.refuse

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        assert mapped(address, self.locked.pop(address)), "unmapped before it was unlocked"
        return 0


def mapped(address: int, size: int) -> bool:
    with open("/proc/self/maps") as lines:
        spans = [tuple(int(x, 16) for x in line.split()[0].split("-")) for line in lines]
    return any(begin <= address and address + size <= end for begin, end in spans)


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    monkeypatch.setattr(pinned, "_runtime", lambda: made)
    monkeypatch.setattr(pinned, "uses_gpu", lambda: True)
    monkeypatch.setattr(shm, "uses_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return made


def round_trip(sender, reader, version, size):
    given = {name: torch.full((size,), float(version)) for name in ("a", "b", "c")}
    received = {name: t.clone() for name, t in reader.fetch(sender.publish(version, given.items()))}
    assert received.keys() == given.keys() and all(torch.equal(received[n], given[n]) for n in given)


def test_memory_stays_locked_from_version_to_version(runtime):
    with closing(SharedMemory()) as sender, closing(SharedMemory()) as reader:
        for version in range(1, 4):
            round_trip(sender, reader, version, 50_000)
        calls = runtime.calls
        for version in range(4, 10):
            round_trip(sender, reader, version, 50_000)
        assert runtime.calls == calls and len(runtime.locked) == 4  # two buffers, each by publisher and reader
    assert not runtime.locked


def test_sizes_may_change(runtime):
    with closing(SharedMemory()) as sender, closing(SharedMemory()) as reader:
        for version, size in enumerate((10, 100_000, 3, 1_000_000, 10, 2_000_000, 2_000_000, 2_000_000), start=1):
            round_trip(sender, reader, version, size)
    assert not runtime.locked


def test_a_driver_that_refuses(runtime, capsys):
    runtime.refuse = 801
    with closing(SharedMemory()) as sender, closing(SharedMemory()) as reader:
        for version in range(1, 5):
            round_trip(sender, reader, version, 10_000)
    assert runtime.calls and not runtime.locked
