"""The transport `torchstore`: its checks without TorchStore, the contract with it."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from forge_plugin_torchstore import forge_check_plan, forge_run_started, installed, packs, shared
from forge_plugin_torchstore.transport import TorchStore

from forge_host.api import RunInfo
from forge_host.errors import PluginError, RunError
from forge_host.testing import PluginContract, TransportContract
from forge_host.testing.transport import copied, is_version, weights
from forge_host.testing.transport_ends import answer, read_one_and_wait

needs_torchstore = pytest.mark.skipif(
    importlib.util.find_spec("torchstore") is None, reason=f"TorchStore is not installed: {installed.INSTALL}"
)


class TestPlugin(PluginContract):
    plugin = "torchstore"


@needs_torchstore
class TestTransport(TransportContract):
    transport = "torchstore/torchstore"
    config = {"timeout_s": 60.0}
    cycles = 200  # nine messages each


# --- without TorchStore -----------------------------------------------------------------------------------------------


def have(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> list[str]:
    """As if these distributions were installed; returns what `installed_revision` may be asked."""

    def distribution(name: str) -> Any:
        if versions.get(name) is None:
            raise installed.PackageNotFoundError(name)
        url = json.dumps({"url": installed.REPOSITORY, "vcs_info": {"vcs": "git", "commit_id": "abc"}})
        return SimpleNamespace(version=versions[name], read_text=lambda _: url)

    monkeypatch.setattr(installed, "distribution", distribution)
    return []


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({}, "TorchStore is not installed; pip install --no-deps 'torchstore @ git.https://"),
        ({"torchstore": "0.1.2"}, "torchstore 0.1.2 fails on torchmonarch 0.7: .*; pip uninstall -y torchstore; pip"),
        ({"torchstore": "0.0.0.dev0", "pygtrie": "2.5"}, "TorchStore imports portpicker, not .*; pip install portpick"),
    ],
)
def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str], message: str) -> None:
    have(monkeypatch, **versions)
    with pytest.raises(PluginError, match=message):
        TorchStore().open("x")
    plan: Any = SimpleNamespace(transport=SimpleNamespace(plugin="torchstore", name="torchstore"))
    (finding,) = forge_check_plan(plan, SimpleNamespace())
    assert finding.level == "error" and "torchstore" in finding.message.lower() and finding.fix
    other: Any = SimpleNamespace(transport=SimpleNamespace(plugin="builtin", name="shm"))
    assert not list(forge_check_plan(other, SimpleNamespace()))


def test_another_revision_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    have(monkeypatch, torchstore="0.0.0.dev0", pygtrie="2.5", portpicker="1.6")
    installed.check_torchstore()
    assert "untested revision of TorchStore" in (said := capsys.readouterr().err) and "abc" in said


def test_a_small_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10, f_blocks=16384, f_frsize=4096))
    shared.require_shared_memory(40_000)
    with pytest.raises(RunError, match=r"/dev/shm is too small .*: 3\.00 GiB needed, 0\.00 GiB of 0\.06 GiB free"):
        shared.require_shared_memory(3 << 30)
    with pytest.raises(RunError, match=r"mount -o remount,size=7G /dev/shm \(docker: --shm-size\), or set transport: "):
        shared.require_shared_memory(3 << 30)


def test_leftovers_of_killed_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "FOLDER", str(tmp_path))
    (tmp_path / f"torch_{os.getpid()}_1_0").write_bytes(b"x")  # of a living process
    assert shared.leftovers() is None
    (tmp_path / f"torch_{2**22 + 1}_1_0").write_bytes(bytes(2_000_000))
    assert shared.leftovers() == (
        f"{tmp_path} holds 2 MB of shared memory of processes that were killed", f"rm {tmp_path}/torch_{2**22 + 1}_*"
    )  # fmt: skip


def test_a_run_with_torchstore_waits_for_acknowledgements() -> None:
    from monarch.config import configured, get_global_config

    def timeout(transport: str) -> object:
        with configured(message_delivery_timeout="30s"):
            forge_run_started(RunInfo(id="x", directory="x", config={"transport": {"use": transport, "extra": {}}}))
            return get_global_config()["message_delivery_timeout"]

    assert timeout("builtin/shm") == "30s"
    assert timeout("torchstore/torchstore") == "10m"


# --- with it ----------------------------------------------------------------------------------------------------------


@needs_torchstore
def test_keys_and_memory_are_used_again() -> None:
    """Two sets of keys whatever the number of versions; a changed size takes the place of the old one."""
    with closing(TorchStore()) as transport:
        transport.open("keys")
        places = set()
        for version in range(1, 7):
            big = torch.full((1 << 19,), float(version))
            receipt = transport.publish(version, [("big", big), ("b", torch.ones(3))])
            for name, tensor in transport.fetch(receipt):
                places.add(tensor.data_ptr())
                assert tensor[0] == (version if name == "big" else 1)
        assert len(places) == 4
        for version in (7, 8):
            receipt = transport.publish(version, [("big", torch.full((1 << 18,), 9.0))])
        assert copied(transport, receipt)["big"].sum() == 9 * 2**18
        assert [list(slot.sizes) for slot in transport._slots] == [["0/big/1048576"], ["1/big/1048576"]]


def test_packs() -> None:
    """Small tensors share a blob, large ones do not, and equal layouts give equal keys."""
    tensors = {f"{i}": torch.full((1000,), float(i)) for i in range(300)} | {"big": torch.ones(1 << 18)}
    index: list[packs.Entry] = []
    blobs = {key: blob.clone() for key, blob in packs.packed(tensors.items(), index)}
    assert {key: len(blob) for key, blob in blobs.items()} == {"pack0": 2**20, "pack1": 2**20, "big/1048576": 2**20}
    assert all(torch.equal(entry.tensor(blobs), tensors[entry.name]) for entry in index) and len(index) == 301
    again: list[packs.Entry] = []
    assert [key for key, _ in packs.packed(tensors.items(), again)] == list(blobs) and again == index


@needs_torchstore
def test_rdma_without_a_device() -> None:
    import monarch.rdma

    if monarch.rdma.is_ibverbs_available():
        pytest.skip("this host has an RDMA device")
    with closing(TorchStore(backend="rdma")) as transport:
        transport.open("rdma")
        with pytest.raises(RunError, match="backend is rdma, but Monarch finds no RDMA device"):
            transport.publish(1, weights(1).items())


@needs_torchstore
def test_use_rdma_says_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHSTORE_USE_RDMA", "1")
    with closing(TorchStore()) as transport:
        transport.open("rdma")
        assert is_version(copied(transport, transport.publish(1, weights(1).items())), 1)
    assert "TORCHSTORE_USE_RDMA=1, but this host has no RDMA device" in capsys.readouterr().err


@needs_torchstore
def test_a_dead_publisher_is_noticed_at_once() -> None:
    with closing(TorchStore()) as transport:
        transport.open("dead")
        receipt = transport.publish(1, weights(1).items())
        stale = attrs.evolve(receipt, location={**receipt.location, "pid": 2**22 + 1})
        with pytest.raises(RunError, match="version 1 of the weights is gone: its publisher has ended"):
            copied(transport, stale)


def outlive_a_reader() -> None:
    """A process whose reader is killed with a message on the way, and whose store is closed then."""
    contract = TestTransport()
    publisher = contract.connect(contract.config, "outlive")
    receipt = publisher.publish(1, weights(1, 50_000).items())
    with contract.child(read_one_and_wait, contract.config, "outlive", receipt) as pipe:
        assert answer(pipe) == "reading"
    publisher.close()
    time.sleep(40)  # Monarch would give the message up after 30


@needs_torchstore
@pytest.mark.slow
def test_a_killed_reader_does_not_end_a_process_whose_publisher_has_closed() -> None:
    process = multiprocessing.get_context("spawn").Process(target=outlive_a_reader)
    process.start()
    process.join()
    assert process.exitcode == 0
