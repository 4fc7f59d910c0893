"""The transport `rdma` over Monarch's TCP fallback: the contract, and what only it promises."""

from __future__ import annotations

import os
from contextlib import closing

import attrs
import monarch
import pytest
import torch
from forge_plugin_rdma import memory
from forge_plugin_rdma.transport import Rdma

from forge_host.errors import RunError
from forge_host.testing import PluginContract, TransportContract
from forge_host.testing.transport import copied, is_version, weights


class TestPlugin(PluginContract):
    plugin = "rdma"


class TestTransport(TransportContract):
    transport = "rdma/rdma"
    cycles = 500  # three messages each


def test_large_tensors_and_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments fill up one after the other, a tensor larger than one has its own, and a smaller model frees them."""
    monkeypatch.setattr(memory, "SEGMENT_BYTES", 1000)
    big = {f"{i}": torch.full((i * 100,), i, dtype=torch.uint8) for i in (1, 2, 3, 9, 40, 4)}
    with closing(Rdma()) as transport:
        transport.open("segments")
        for version in (1, 2, 3):
            receipt = transport.publish(version, big.items())
            assert all(torch.equal(tensor, big[name]) for name, tensor in copied(transport, receipt).items())
            assert [used for used, _ in receipt.location["segments"]] == [684, 900, 4000, 400]
        for version in (4, 5):
            receipt = transport.publish(version, weights(version, 10).items())
        assert is_version(copied(transport, receipt), 5) and len(receipt.location["segments"]) == 1


def test_a_reader_keeps_its_memory() -> None:
    with closing(Rdma()) as transport:
        transport.open("memory")
        places = set()
        for version in range(1, 5):
            for _, tensor in transport.fetch(transport.publish(version, weights(version).items())):
                places.add(tensor.data_ptr())
        assert len(places) == 4


def test_a_dead_publisher_is_noticed_at_once() -> None:
    with closing(Rdma()) as transport:
        transport.open("dead")
        receipt = transport.publish(1, weights(1).items())
        stale = attrs.evolve(receipt, location={**receipt.location, "pid": 2**22 + 1})
        with pytest.raises(RunError, match="version 1 of the weights is gone: its publisher has ended"):
            copied(transport, stale)


def test_without_a_device_and_without_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    if monarch.rdma.is_ibverbs_available():
        pytest.skip("this host has an RDMA device")
    with pytest.raises(RunError, match=f"no RDMA device .* on host {os.uname().nodename}; set transport.tcp_fallback"):
        Rdma(tcp_fallback=False).open("none")
    monarch.configure(rdma_allow_tcp_fallback=True)
