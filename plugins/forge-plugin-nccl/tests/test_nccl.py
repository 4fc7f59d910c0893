"""The transport against the contract, through gloo on the CPU; `contrib/bench/gpu_sync.py --rows nccl` needs 2 GPUs."""

import multiprocessing
import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from forge_plugin_nccl import group, link
from forge_plugin_nccl.transport import Nccl

from forge_host.errors import RunError
from forge_host.testing import PluginContract, TransportContract, load_component

GLOO = f"{Path(__file__).parent / 'gloo_transport.py'}:Gloo"


class TestPlugin(PluginContract):
    plugin = "nccl"


class TestContract(TransportContract):
    transport = GLOO
    cycles = 1000


@pytest.fixture
def pair():
    sender, reader = (load_component("transport", GLOO, {"timeout_s": 10}) for _ in range(2))
    with closing(sender), closing(reader):
        yield sender, reader


def read(reader, receipt):
    return {name: tensor.clone() for name, tensor in reader.fetch(receipt)}


def test_in_buckets(pair, monkeypatch):
    monkeypatch.setattr(group, "BUCKET_BYTES", 1000)
    sender, reader = pair
    for version in (1, 2, 3):
        given = {f"t{i}": torch.randn(77) for i in range(9)}
        received = read(reader, sender.publish(version, given.items()))
        assert all(torch.equal(received[n], given[n]) for n in given)


def test_memory_is_used_again(pair):
    sender, reader = pair
    places = []
    for version in range(1, 7):
        read(reader, sender.publish(version, [("a", torch.full((1000,), float(version)))]))
        places.append(sender._slots[-1].flat.data_ptr())
    assert places[::2] == places[:1] * 3 and places[1::2] == places[1:2] * 3


def test_two_ranks_on_one_gpu_are_refused(pair):
    sender, reader = pair
    receipt = sender.publish(1, [("a", torch.ones(3))])
    reader._on()._identity = sender._on()._identity = "GPU-1"
    with pytest.raises(RunError, match="on one GPU, and NCCL refuses two ranks on one"):
        reader.fetch(receipt)
    reader._on()._identity = "GPU-2"
    assert read(reader, receipt)["a"].tolist() == [1, 1, 1]


def test_a_publisher_that_starts_again(pair):
    """The reader notices that its link is of a dead publisher and takes the new one's."""
    sender, reader = pair
    old = sender.publish(1, [("a", torch.ones(3))])
    assert read(reader, old)
    sender.close()
    with pytest.raises(RunError, match="version 1 of the weights is gone"):
        reader.fetch(old)
    assert read(reader, sender.publish(2, [("a", torch.zeros(3))]))["a"].tolist() == [0, 0, 0]


def test_a_stranger_gets_nothing(pair):
    sender, reader = pair
    receipt = sender.publish(1, [("a", torch.ones(3))])
    receipt.location["key"] = b"another key"
    with pytest.raises(Exception, match="digest"):
        reader.fetch(receipt)
    receipt.location["key"] = sender._sender.location()["key"]
    assert read(reader, receipt)


def test_close_ends_the_threads(pair):
    sender, reader = pair
    before = threading.active_count()
    read(reader, sender.publish(1, [("a", torch.ones(3))]))
    assert threading.active_count() > before
    sender.close()
    reader.close()
    assert not [t for t in threading.enumerate() if t.name == "forge-nccl"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu():
    with pytest.raises(RunError, match="needs a GPU"):
        Nccl().publish(1, [("a", torch.ones(3))])


def test_a_reader_that_asks_for_more_has_not_left():
    here, there = multiprocessing.Pipe()
    assert not link._ended(here)
    there.send("the next version")
    assert not link._ended(here)
    here.recv()
    there.close()
    assert link._ended(here)
    here.close()
    assert link._ended(here)
