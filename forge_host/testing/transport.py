"""What every weight-sync transport owes its users, as a pytest class.

    from forge_host.testing import TransportContract

    class TestMine(TransportContract):
        transport = "my-transport"

Each test makes publishers and readers of its own; those in other processes are started with this interpreter, so the
transport has to be importable there. `pytest -m 'not slow'` leaves the 4 GiB tensor out.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ClassVar

import pytest
import torch

from forge_host.api import Receipt, RunError, Transport
from forge_host.loop.checksum import tensor_digest
from forge_host.loop.pieces import fetch_tensors, merge_receipts, publish_pieces
from forge_host.testing.component import load_component
from forge_host.testing.leftovers import Opened, resident_bytes
from forge_host.testing.transport_ends import (
    DEADLINE_S,
    ODD,
    answer,
    copied,
    is_version,
    publish_one_and_a_half,
    read_all,
    read_one_and_wait,
    weights,
)


class TransportContract:
    """Subclass it, name the transport and, if it has settings, give them.

    Attributes:
        transport: component reference.
        config: values of its fields.
        cycles: versions that `test_many_cycles` publishes; fewer for a transport that waits for a disk.
    """

    transport: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    cycles: ClassVar[int] = 10_000

    # --- what a test starts from -----------------------------------------------------------------------------------

    @pytest.fixture
    def settings(self, tmp_path: Any) -> Mapping[str, Any]:
        """The transport's settings; override it when they need a fresh folder for each test."""
        return self.config

    @pytest.fixture
    def namespace(self, request: pytest.FixtureRequest) -> str:
        return f"contract-{os.getpid()}-{abs(hash(request.node.nodeid)) % 10**8}"

    @pytest.fixture
    def publisher(self, settings: Mapping[str, Any], namespace: str) -> Iterator[Transport]:
        with closing(self.connect(settings, namespace)) as transport:
            yield transport

    @pytest.fixture
    def reader(self, settings: Mapping[str, Any], namespace: str) -> Iterator[Transport]:
        with closing(self.connect(settings, namespace)) as transport:
            yield transport

    def connect(self, settings: Mapping[str, Any], namespace: str) -> Transport:
        transport: Transport = load_component("transport", self.transport, settings)
        transport.open(namespace)
        return transport

    # --- content ----------------------------------------------------------------------------------------------------

    def test_bitwise_equal(self, publisher: Transport, reader: Transport) -> None:
        """Every dtype, shape and layout arrives bit for bit, in its own dtype and shape."""
        receipt = publisher.publish(1, ODD.items())
        received = copied(reader, receipt)
        assert received.keys() == ODD.keys()
        wrong = [n for n in ODD if tensor_digest(received[n]) != tensor_digest(ODD[n])]
        assert not wrong, f"changed on the way: {wrong}"
        assert (receipt.version, receipt.num_tensors) == (1, len(ODD))
        assert receipt.num_bytes == sum(t.nbytes for t in ODD.values())

    def test_checksums(self, publisher: Transport, reader: Transport) -> None:
        """Asked for, the receipt has `forge_host.loop.checksum.tensor_digest` of every tensor; otherwise none."""
        assert publisher.publish(1, weights(1).items()).checksums is None
        receipt = publisher.publish(2, ODD.items(), checksums=True)
        assert receipt.checksums == {name: tensor_digest(t) for name, t in copied(reader, receipt).items()}

    def test_many_small_tensors(self, publisher: Transport, reader: Transport) -> None:
        """10,000 tensors, from an iterator that is read once."""
        receipt = publisher.publish(1, ((f"layer.{i}", torch.full((3,), float(i))) for i in range(10_000)))
        received = copied(reader, receipt)
        assert len(received) == 10_000
        assert all(received[f"layer.{i}"][0] == i for i in range(10_000))

    @pytest.mark.slow
    def test_4_gib_tensor(self, publisher: Transport, reader: Transport) -> None:
        """Offsets beyond 32 bits."""
        big = torch.zeros(1 << 32, dtype=torch.uint8)
        big[-1] = 7
        receipt = publisher.publish(1, [("big", big), ("after", torch.tensor([5]))])
        del big
        tensors = reader.fetch(receipt)
        for name, tensor in tensors:
            assert tensor[-1] == {"big": 7, "after": 5}[name]

    def test_sizes_may_change(self, publisher: Transport, reader: Transport) -> None:
        """Versions of other sizes follow each other, as with adapters and tied weights."""
        for version, size in enumerate((10, 100_000, 3, 1_000_000, 10), start=1):
            received = copied(reader, publisher.publish(version, weights(version, size).items()))
            assert is_version(received, version) and received["a"].numel() == size

    # --- versions ---------------------------------------------------------------------------------------------------

    def test_versions_strictly_increase(self, publisher: Transport, reader: Transport) -> None:
        receipt = publisher.publish(5, weights(5).items())
        for version in (5, 4):
            with pytest.raises(ValueError, match="version"):
                publisher.publish(version, weights(version).items())
        assert is_version(copied(reader, receipt), 5)

    def test_publisher_may_change_its_tensors(self, publisher: Transport, reader: Transport) -> None:
        """As soon as `publish` returns, training goes on in place."""
        own = {name: tensor.clone() for name, tensor in weights(1).items()}
        receipt = publisher.publish(1, own.items())
        for tensor in own.values():
            tensor.zero_()
        assert is_version(copied(reader, receipt), 1)

    def test_reader_may_change_its_tensors(self, publisher: Transport, reader: Transport) -> None:
        """What one reader does to its tensors reaches no other."""
        receipt = publisher.publish(1, weights(1).items())
        for _, tensor in reader.fetch(receipt):
            tensor.zero_()
        assert is_version(copied(reader, receipt), 1)

    def test_the_newest_two_stay(self, publisher: Transport, reader: Transport) -> None:
        """The version before the newest can be fetched, the one before that is refused."""
        receipts = [publisher.publish(v, weights(v).items()) for v in (1, 2, 3)]
        with pytest.raises(RunError, match="1"):
            copied(reader, receipts[0])
        assert is_version(copied(reader, receipts[1]), 2)
        assert is_version(copied(reader, receipts[2]), 3)

    def test_fetch_twice(self, publisher: Transport, reader: Transport) -> None:
        receipt = publisher.publish(1, weights(1).items())
        assert is_version(copied(reader, receipt), 1)
        assert is_version(copied(reader, receipt), 1)

    def test_closed_publisher(self, publisher: Transport, reader: Transport) -> None:
        """After `close` there is nothing to fetch, and the reader is told so."""
        receipt = publisher.publish(1, weights(1).items())
        publisher.close()
        with pytest.raises(RunError):
            copied(reader, receipt)

    def test_failed_publish_publishes_nothing(self, publisher: Transport, reader: Transport) -> None:
        """An error among the tensors (a rank died) leaves the newest version as it was, and the next one works."""
        receipt = publisher.publish(1, weights(1).items())

        def broken() -> Iterator[tuple[str, torch.Tensor]]:
            yield "a", torch.full((100,), 2.0)
            raise ConnectionError("a rank died")

        with pytest.raises(ConnectionError):
            publisher.publish(2, broken())
        assert is_version(copied(reader, receipt), 1)
        assert is_version(copied(reader, publisher.publish(2, weights(2).items())), 2)

    # --- at once ----------------------------------------------------------------------------------------------------

    def test_lease(self, publisher: Transport, reader: Transport) -> None:
        """A version somebody is reading stays as it is, whatever is published meanwhile."""
        tensors = reader.fetch(publisher.publish(1, weights(1, 50_000).items()))
        with closing(tensors):  # type: ignore[type-var]
            name, tensor = next(tensors)
            for version in range(2, 7):
                publisher.publish(version, weights(version, 50_000).items())
            received = {name: tensor.clone()}
            received |= {name: tensor.clone() for name, tensor in tensors}
        assert is_version(received, 1)

    def test_no_torn_reads(self, settings: Mapping[str, Any], namespace: str, publisher: Transport) -> None:
        """Two readers race a fast writer: each gets a whole version or an error, never a mixture."""
        receipts = [publisher.publish(1, weights(1, 200_000).items())]
        torn: list[object] = []
        whole = [0, 0]
        done = threading.Event()

        def read(which: int) -> None:
            with closing(self.connect(settings, namespace)) as mine:
                while not done.is_set():
                    receipt = receipts[-1]
                    try:
                        received = copied(mine, receipt)
                    except RunError:
                        continue
                    whole[which] += 1
                    if not is_version(received, receipt.version):
                        torn.append(receipt.version)

        readers = [threading.Thread(target=read, args=(which,)) for which in range(2)]
        for thread in readers:
            thread.start()
        for version in range(2, 60):
            receipts.append(publisher.publish(version, weights(version, 200_000).items()))
        while min(whole) == 0 and any(thread.is_alive() for thread in readers):
            done.wait(0.01)
        done.set()
        for thread in readers:
            thread.join(DEADLINE_S)
        assert not torn, f"torn versions: {torn}"
        assert min(whole) > 0

    # --- pieces -----------------------------------------------------------------------------------------------------

    def test_two_ranks_publish_for_one_reader(
        self, publisher: Transport, reader: Transport, settings: Any, namespace: str
    ) -> None:
        """Resharding 2 -> 1: what each rank holds, by rows or by columns, comes whole."""
        self.needs_resharding(publisher)
        whole = {"rows": torch.arange(30.0).reshape(5, 6), "columns": torch.arange(24).reshape(4, 6).to(torch.bfloat16)}
        halves = [
            [("rows", whole["rows"][:3], (0, 0), (5, 6)), ("columns", whole["columns"][:, :2], (0, 0), (4, 6))],
            [("rows", whole["rows"][3:], (3, 0), (5, 6)), ("columns", whole["columns"][:, 2:], (0, 2), (4, 6))],
        ]
        with closing(self.connect(settings, f"{namespace}-rank1")) as other:
            receipts = [publish_pieces(rank, 1, half) for rank, half in zip((publisher, other), halves, strict=True)]
            received = {n: t.clone() for n, t in fetch_tensors(reader, merge_receipts(receipts))}
        assert {n: tensor_digest(t) for n, t in received.items()} == {n: tensor_digest(t) for n, t in whole.items()}

    def test_two_readers_take_halves(
        self, publisher: Transport, reader: Transport, settings: Any, namespace: str
    ) -> None:
        """Resharding 1 -> 2: each reader gets the slice it wants, and the slices make the whole."""
        self.needs_resharding(publisher)
        whole = torch.arange(30.0).reshape(5, 6)
        receipt = publisher.publish(1, [("w", whole), ("norm", torch.ones(6))])
        with closing(self.connect(settings, namespace)) as other:
            for axis, cut in ((0, 2), (1, 3)):
                halves = []
                for mine, (start, stop) in ((reader, (0, cut)), (other, (cut, whole.shape[axis]))):
                    slices = [slice(0, n) for n in whole.shape]
                    slices[axis] = slice(start, stop)
                    received = {n: t.clone() for n, t in fetch_tensors(mine, receipt, {"w": tuple(slices)})}
                    assert received["norm"].shape == (6,)
                    halves.append(received["w"])
                assert torch.equal(torch.cat(halves, axis), whole)

    def needs_resharding(self, transport: Transport) -> None:
        if not transport.capabilities.resharding:
            pytest.skip(f"transport {self.transport} moves whole tensors only (capabilities.resharding is off)")

    # --- other processes --------------------------------------------------------------------------------------------

    def test_two_readers_in_other_processes(self, publisher: Transport, settings: Any, namespace: str) -> None:
        """At once, where the transport has several readers."""
        receipt = publisher.publish(1, weights(1, 1000).items(), checksums=True)
        with ExitStack() as stack:
            pipes = [
                stack.enter_context(self.child(read_all, settings, namespace, receipt))
                for _ in range(2 if publisher.capabilities.several_readers else 1)
            ]
            assert [answer(pipe) for pipe in pipes] == [receipt.checksums] * len(pipes)

    def test_reader_killed_while_reading(
        self, publisher: Transport, reader: Transport, settings: Any, namespace: str
    ) -> None:
        """A reader that dies by SIGKILL holds nothing back and breaks nothing."""
        receipt = publisher.publish(1, weights(1, 50_000).items())
        with self.child(read_one_and_wait, settings, namespace, receipt) as pipe:
            assert answer(pipe) == "reading"
        for version in range(2, 6):
            receipt = publisher.publish(version, weights(version, 50_000).items())
        assert is_version(copied(reader, receipt), 5)

    def test_publisher_killed(self, reader: Transport, settings: Any, namespace: str) -> None:
        """A publisher killed between two tensors has published nothing new; what it published is whole or gone."""
        with self.child(publish_one_and_a_half, settings, namespace, None) as pipe:
            receipt = answer(pipe)
            assert answer(pipe) == "half"
            assert is_version(copied(reader, receipt), 1)
        try:
            received = copied(reader, receipt)
        except RunError:
            return
        assert is_version(received, 1)

    def test_another_run_after_a_crash(self, settings: Any, namespace: str) -> None:
        """What a killed publisher left does not disturb the next one of the same name."""
        with self.child(publish_one_and_a_half, settings, namespace, None) as pipe:
            answer(pipe)
            answer(pipe)
        with closing(self.connect(settings, namespace)) as again:
            assert is_version(copied(again, again.publish(1, weights(7).items())), 7)

    def test_leaves_nothing_open(self, settings: Any, namespace: str) -> None:
        """After many versions and `close`, this process has the file descriptors and /dev/shm the files of before."""
        for first in (True, False):  # what a library opens once and keeps is not counted
            before = Opened()
            sender, reader = (self.connect(settings, namespace) for _ in range(2))
            with closing(sender), closing(reader):
                for version in range(1, 20):
                    assert is_version(copied(reader, sender.publish(version, weights(version).items())), version)
            if not first:
                assert before.more() == []

    @pytest.mark.slow
    def test_many_cycles(self, publisher: Transport, reader: Transport) -> None:
        """Memory, file descriptors and /dev/shm do not grow over `cycles` versions."""
        warm = self.cycles // 10
        for version in range(1, warm + 1):
            copied(reader, publisher.publish(version, weights(version).items()))
        before, memory = Opened(), resident_bytes()
        for version in range(warm + 1, warm + self.cycles + 1):
            assert is_version(copied(reader, publisher.publish(version, weights(version).items())), version)
        assert before.more() == []
        grown = resident_bytes() - memory
        assert grown < 16 << 20, f"{grown / 1e6:.1f} MB more after {self.cycles} cycles"

    @contextmanager
    def child(self, target: Any, settings: Mapping[str, Any], namespace: str, receipt: Receipt | None) -> Iterator[Any]:
        """A process that runs `target(pipe, contract, settings, namespace, receipt)`; killed at the end."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=target, args=(there, self.transport, dict(settings), namespace, receipt))
        process.start()
        there.close()
        try:
            yield here
        finally:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()  # with a deadline it would wait for what the process started, too
            here.close()
