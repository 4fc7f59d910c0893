"""Private mappings that a reader of shared memory keeps: when they are used again, and when they must not be."""

import fcntl
import mmap
import os
from contextlib import closing

import pytest
import torch

from forge_host.builtin.transports import private
from forge_host.builtin.transports.private import PrivateMaps, written
from forge_host.builtin.transports.shm import SharedMemory

SIZE = 50_000  #: more than one page of float32


@pytest.fixture
def ends():
    with closing(SharedMemory()) as sender, closing(SharedMemory()) as reader:
        yield sender, reader


def fetch(sender, reader, version, change=lambda tensor: None):
    """Where the version was read; every value has to be its number."""
    given = {name: torch.full((SIZE,), float(version)) for name in ("a", "b")}
    for name, tensor in reader.fetch(sender.publish(version, given.items())):
        assert torch.equal(tensor, given[name])
        address = tensor.untyped_storage().data_ptr()
        change(tensor)
    return address


def test_mappings_are_used_again(ends):
    seen = [fetch(*ends, version) for version in range(1, 9)]
    assert set(seen[4:]) == set(seen[2:4]) and len(set(seen[2:4])) == 2  # the publisher's two buffers


def test_what_a_reader_wrote_is_not_taken_for_a_later_version(ends):
    for version in range(1, 9):
        fetch(*ends, version, change=lambda tensor: tensor[-1:].fill_(-1))


def test_nothing_is_kept_where_the_kernel_does_not_say(ends, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(private.os, "pread", refused)
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    assert written(pages)


def test_a_mapping_has_one_user_and_the_lease_ends_with_the_block(ends):
    sender, _ = ends
    receipt = sender.publish(1, [("a", torch.zeros(SIZE))])
    path = f"/proc/{os.getpid()}/fd/{receipt.location['fd']}"
    lease, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
    fcntl.flock(lease, fcntl.LOCK_SH)
    maps = PrivateMaps(most=1)
    with maps.taken(lease) as first, maps.taken(lease) as second:
        assert first is not second
        with pytest.raises(BlockingIOError):
            fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with maps.taken(lease) as again:
        assert again in (first, second)
    os.close(lease)
    fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kept mapping does not hold the lease
    maps.close()
    os.close(writer)


def test_closing_gives_the_memory_back(ends):
    sender, reader = ends
    before = len(os.listdir("/proc/self/fd"))
    fetch(sender, reader, 1)
    held = len(os.listdir("/proc/self/fd"))
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == held - 1
    sender.close()
    assert len(os.listdir("/proc/self/fd")) == before
