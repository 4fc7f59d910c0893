"""The transport against the contract on memory of the host; `contrib/bench/gpu_sync.py` runs it on a GPU."""

from pathlib import Path

import pytest
import torch
from forge_plugin_cuda_ipc.transport import CudaIpc

from forge_host.builtin.transports import flat
from forge_host.errors import RunError
from forge_host.loop.checksum import tensor_digest
from forge_host.testing import PluginContract, TransportContract, load_component

HOST_IPC = f"{Path(__file__).parent / 'host_ipc.py'}:HostIpc"


class TestPlugin(PluginContract):
    plugin = "cuda-ipc"


class TestContract(TransportContract):
    transport = HOST_IPC
    cycles = 2000

    def test_reader_may_change_its_tensors(self, publisher, reader):
        """Not owed: `fetch` gives views of the publisher's memory, for reading."""
        receipt = publisher.publish(1, [("a", torch.ones(3))])
        _, first = next(iter(reader.fetch(receipt)))
        _, second = next(iter(reader.fetch(receipt)))
        assert first.data_ptr() == second.data_ptr()


@pytest.fixture
def pair():
    sender, reader = load_component("transport", HOST_IPC), load_component("transport", HOST_IPC)
    sender.open("t")
    reader.open("t")
    yield sender, reader
    sender.close()
    reader.close()


def test_memory_is_used_again(pair):
    """From the third version on nothing is allocated and nothing mapped."""
    sender, reader = pair
    memories = []
    for version in range(1, 7):
        receipt = sender.publish(version, [("a", torch.full((1000,), float(version)))])
        assert [t[0].item() for _, t in reader.fetch(receipt)] == [version]
        memories.append(receipt.location["memory"])
    assert memories[::2] == memories[:1] * 3 and memories[1::2] == memories[1:2] * 3
    assert len(reader._maps) == 2


def test_grows_in_the_middle(pair, monkeypatch):
    """What was already copied in when the memory turned out too small moves along."""
    monkeypatch.setattr(flat, "BATCH_BYTES", 4000)
    sender, reader = pair
    for version, count in enumerate((2, 2, 9, 9, 1), start=1):
        given = {f"t{i}": torch.full((700,), float(100 * version + i)) for i in range(count)}
        received = {n: t.clone() for n, t in reader.fetch(sender.publish(version, given.items()))}
        assert received.keys() == given.keys() and all(torch.equal(received[n], given[n]) for n in given)
    assert len(reader._maps) <= 2


def test_versions_laid_out_otherwise(pair, monkeypatch):
    """What is kept of the version before is used for what is the same, and for nothing else."""
    monkeypatch.setattr(flat, "BATCH_BYTES", 100)
    sender, reader = pair
    base = {f"t{i}": torch.rand(7, 5) for i in range(9)}
    base["half"], base["empty"], base["grad"] = (
        torch.rand(3).half(),
        torch.empty(0, 3),
        torch.rand(4, requires_grad=True),
    )
    names = list(base)
    versions = [base, base, base]
    versions += [base | {"t4": base["t4"].reshape(5, 7)}] * 3  # a shape
    versions += [base | {"t8": base["t8"].to(torch.int32)}] * 3  # a dtype of the same size
    versions += [{"t0": torch.rand(7, 5), "other": torch.rand(7, 5)} | {n: base[n] for n in names[2:]}] * 3  # a name
    versions += [{n: base[n] for n in names[:3]}] * 3 + [base] * 3  # fewer, more
    versions += [{n: base[n] for n in reversed(names)}] * 3  # another order
    versions += [base | {"t2": torch.rand(5, 7).t()}] * 3  # strides
    versions += [{}, {}, {}, base]
    for version, given in enumerate(versions, start=1):
        receipt = sender.publish(version, given.items(), checksums=True)
        assert receipt.num_bytes == sum(t.nbytes for t in given.values())
        received = {n: tensor_digest(t) for n, t in reader.fetch(receipt)}
        assert received == receipt.checksums == {n: tensor_digest(t) for n, t in given.items()}, version
        assert list(received) == list(given)


def test_a_name_twice_behind_what_is_as_before(pair, monkeypatch):
    monkeypatch.setattr(flat, "BATCH_BYTES", 4)
    sender, reader = pair
    given = [(f"t{i}", torch.ones(1)) for i in range(4)]
    for version in (1, 2, 3):
        sender.publish(version, given)
    with pytest.raises(ValueError, match="'t1' comes twice"):
        sender.publish(4, [*given, ("t1", torch.ones(1))])
    assert len(dict(reader.fetch(sender.publish(4, given)))) == 4


def test_leased_memory_is_not_freed_before_it_is_mapped(pair, monkeypatch):
    """A reader that is slow between its lease and mapping gets its version; nobody else does any more."""
    sender, reader = pair
    receipt = sender.publish(1, [("a", torch.ones(3))])
    driver = reader._driver()
    late = driver.map

    def map_late(handle, num_bytes):
        for version in range(2, 6):
            sender.publish(version, [("a", torch.full((3,), float(version)))])
        return late(handle, num_bytes)

    monkeypatch.setattr(driver, "map", map_late)
    fetched = reader.fetch(receipt)
    with pytest.raises(RunError, match="gone"):
        sender.fetch(receipt)
    assert [t[0].item() for _, t in fetched] == [1.0]
    sender.publish(6, [("a", torch.ones(3))])
    assert len(sender._slots) == 2


def test_another_gpu_is_named(pair):
    sender, reader = pair
    receipt = sender.publish(1, [("a", torch.ones(3))])
    reader._driver().name = "GPU-2"
    with pytest.raises(RunError, match=r"another GPU \(host\) than this generator \(GPU-2\)"):
        reader.fetch(receipt)
    assert sender.publish(2, [("a", torch.ones(3))]) and sender.publish(3, [("a", torch.ones(3))])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu():
    with pytest.raises(RunError, match="needs a GPU"):
        CudaIpc().publish(1, [("a", torch.ones(3))])
