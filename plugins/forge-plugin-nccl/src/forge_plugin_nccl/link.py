"""Who sends which version to whom: a control connection per reader, and the group that carries its bytes.

    sender = Sender(backend, "127.0.0.1", timeout_s=60)
    sender.offer(1, flat, owner)
    link = Link(backend, receipt, timeout_s=60)          # in the reader; receipt.location has sender.location()
    flat = link.receive(receipt, num_bytes)

The control connection is `multiprocessing.connection`, authenticated by a key that travels in the receipt. The listener
binds to the trainer's `address` alone; so does the store at which the two ranks of a group meet.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

import structlog

from forge_host.api import Receipt
from forge_host.builtin.transports.lease import gone
from forge_host.errors import RunError
from forge_plugin_nccl.group import Backend, Group, stay_on_this_host

if TYPE_CHECKING:
    import torch

log = structlog.get_logger()
KEPT = "only the newest two are kept"
LOST = (OSError, EOFError)  #: what a connection raises when the other side is gone


class Sender:
    """The trainer's side: answers readers, each on a thread."""

    def __init__(self, backend: Backend, address: str, timeout_s: float) -> None:
        from torch.distributed import TCPStore

        self._backend, self._timeout_s = backend, timeout_s
        if address == "127.0.0.1":
            stay_on_this_host()
        self._key = secrets.token_bytes(16)
        self._listener = Listener((address, 0), authkey=self._key)
        self.address, self.port = self._listener.address
        meeting = socket.create_server((address, 0))
        self._store_port = meeting.getsockname()[1]
        self._store = TCPStore(
            address, self._store_port, is_master=True, wait_for_workers=False, use_libuv=False,
            timeout=timedelta(seconds=timeout_s), master_listen_fd=meeting.detach(),
        )  # fmt: skip
        self._lock = threading.Lock()
        self._offers: dict[int, tuple[torch.Tensor, Any]] = {}  # by version: its bytes and who owns them
        self._sending: list[Any] = []  # owners of what is on its way
        self._connections: list[Connection] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._start(self._accept)

    def location(self) -> dict[str, Any]:
        return {"address": self.address, "port": self.port, "store": self._store_port, "key": self._key}

    def offer(self, version: int, flat: torch.Tensor, owner: Any) -> None:
        """Readers may ask for this version from now on."""
        with self._lock:
            self._offers[version] = flat, owner

    def withdraw(self, owner: Any) -> bool:
        """Readers may not ask for the owner's versions any more; False when one is being sent."""
        with self._lock:
            self._offers = {v: offer for v, offer in self._offers.items() if offer[1] is not owner}
            return owner not in self._sending

    def copy(self, receipt: Receipt, num_bytes: int) -> torch.Tensor:
        """A version's bytes for this process itself."""
        with self._lock:
            if receipt.version not in self._offers:
                raise gone(receipt, KEPT)
            return self._offers[receipt.version][0][:num_bytes].clone()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        try:  # wake the thread that accepts
            socket.create_connection((self.address, self.port), 1).close()
        except OSError as error:
            log.debug("the listener did not answer", error=str(error))
        for connection in connections:
            try:
                with socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its reader has left already
        for thread in self._threads:
            thread.join(self._timeout_s)
        self._listener.close()

    def _start(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="forge-nccl", daemon=True)
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except Exception as error:  # a wrong key, or somebody who left at once
                if self._closed:
                    return
                log.warning("a reader could not connect", error=f"{type(error).__name__}: {error}")
                continue
            if self._closed:
                connection.close()
                return
            self._start(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        """One reader, until it leaves."""
        with self._lock:
            self._connections.append(connection)
        group: Group | None = None
        try:
            name, gpu = connection.recv()
            refusal = ""
            if gpu == self._backend.identity():
                refusal = "trainer and generator are on one GPU, and NCCL refuses two ranks on one"
            connection.send(refusal)
            if refusal:
                return
            from torch.distributed import PrefixStore

            group = Group(self._backend, PrefixStore(name, self._store), 0, self._timeout_s)
            while True:
                self._send(connection, group, connection.recv())
        except LOST:
            return  # the reader is done, or dead
        except RunError as error:
            log.warning("a reader was lost", error=str(error))
            if group is not None:
                group.close(abort=True)
                group = None
        finally:
            with self._lock:
                self._connections.remove(connection)
            connection.close()
            if group is not None:
                group.close()

    def _send(self, connection: Connection, group: Group, asked: tuple[int, int]) -> None:
        version, num_bytes = asked
        with self._lock:
            flat, owner = self._offers.get(version, (None, None))
            if flat is not None:
                self._sending.append(owner)
        if flat is None:
            connection.send(KEPT)
            return
        try:
            connection.send("")
            group.send(flat[:num_bytes], lambda: _ended(connection))
        finally:
            with self._lock:
                self._sending.remove(owner)


class Link:
    """A reader's connection with one trainer, and the memory that it receives into.

    Raises:
        RunError: the trainer is gone, or on the same GPU.
    """

    def __init__(self, backend: Backend, receipt: Receipt, timeout_s: float) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self._backend, self.broken = backend, False
        where = receipt.location
        if where["address"] == "127.0.0.1":
            stay_on_this_host()
        self._flat: torch.Tensor | None = None
        self._group: Group | None = None
        try:
            self._connection = Client((where["address"], where["port"]), authkey=where["key"])
        except LOST as error:
            raise gone(receipt, f"its publisher at {where['address']}:{where['port']} has closed it or died") from error
        name = secrets.token_hex(8)
        try:
            self._connection.send((name, backend.identity()))
            refusal = self._connection.recv()
            if refusal:
                raise RunError(refusal, fix="set transport: cuda-ipc, or give the generator a GPU of its own")
            self._store = TCPStore(
                where["address"], where["store"], is_master=False, use_libuv=False,
                timeout=timedelta(seconds=timeout_s),
            )  # fmt: skip
            self._group = Group(backend, PrefixStore(name, self._store), 1, timeout_s)
        except LOST as error:
            self.close()
            raise gone(receipt, "its publisher died") from error
        except BaseException:
            self.close()
            raise

    def receive(self, receipt: Receipt, num_bytes: int) -> torch.Tensor:
        """The version's bytes; uint8 [num_bytes], valid until the next call.

        Raises:
            RunError: the version or the trainer is gone; `broken` says whether this link is.
        """
        import torch

        assert self._group is not None
        try:
            self._connection.send((receipt.version, num_bytes))
            refusal = self._connection.recv()
        except LOST as error:
            self.broken = True
            raise gone(receipt, "its publisher has closed it or died") from error
        if refusal:
            raise gone(receipt, refusal)
        if self._flat is None or self._flat.numel() < num_bytes:
            self._flat = None
            self._flat = torch.empty(num_bytes, dtype=torch.uint8, device=self._backend.device())
        flat = self._flat[:num_bytes]
        try:
            self._group.receive(flat, lambda: _ended(self._connection))
        except RunError:
            self.broken = True
            raise
        return flat

    def close(self) -> None:
        """Leave; the trainer notices by the connection's end."""
        self._connection.close()
        if self._group is not None:
            self._group.close(abort=self.broken)
            self._group = None


def _ended(connection: Connection) -> bool:
    """Whether the other side has left. What it says is no such sign: a reader may have all its bytes, and ask for the
    next version, before the sender's own wait sees that they have arrived."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
