"""Weights through TorchStore: the publisher puts tensors into a store process, readers get them from there.

    sender, reader = TorchStore(), TorchStore()
    sender.open("run-1")
    receipt = sender.publish(1, model.state_dict().items())
    for name, tensor in reader.fetch(receipt):
        parameters[name].copy_(tensor)

TorchStore has no versions: a put overwrites in place, under a reader too. So versions alternate between two sets of
keys, and a token beside each set is cleared before it is written and set when it is whole: a reader that finds its
version's token after its last get has got that version only. A reader gets the whole version into memory of its own
before the first tensor is yielded; that memory is kept and used for the next version.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from forge_host.api import Capabilities, Receipt, field
from forge_host.errors import ForgeError, RunError
from forge_host.loop.checksum import tensor_digest
from forge_host.runtime.blocking import Blocking
from forge_plugin_torchstore.installed import check_torchstore
from forge_plugin_torchstore.shared import require_shared_memory

if TYPE_CHECKING:
    import torch

    from forge_plugin_torchstore.packs import Entry
    from forge_plugin_torchstore.store import Store

T = TypeVar("T")
BATCH_BYTES = 256 << 20  #: put at once; as much of the publisher's weights is held beside the model


@attrs.define
class _Slot:
    """A set of keys; a key tells the size of its blob, as that of a stored tensor cannot change."""

    number: int
    sizes: dict[str, int] = attrs.field(factory=dict)  #: bytes of what is stored, by key

    @property
    def token(self) -> str:
        return f"{self.number}/token"


@attrs.define(kw_only=True)
class TorchStore:
    """The transport `torchstore`."""

    backend: str = field(
        default="auto",
        help="auto (TorchStore's choice; RDMA first with TORCHSTORE_USE_RDMA=1), shared-memory, rdma, gloo or rpc",
        validator=attrs.validators.in_(("auto", "shared-memory", "rdma", "gloo", "rpc")),
    )
    timeout_s: float = field(
        default=120.0, help="deadline of one publish or fetch", unit="s", validator=attrs.validators.gt(0)
    )
    capabilities: Capabilities = attrs.field(
        default=Capabilities(cross_host=True, resharding=True, partial=True), init=False
    )
    _version: int | None = attrs.field(default=None, init=False)
    _own: Store | None = attrs.field(default=None, init=False)
    _slots: list[_Slot] = attrs.field(factory=list, init=False)
    _joined: dict[bytes, Store] = attrs.field(factory=dict, init=False)
    _blobs: dict[int, dict[str, torch.Tensor]] = attrs.field(factory=dict, init=False)
    _thread: Blocking = attrs.field(factory=lambda: Blocking("transport torchstore"), init=False)

    def open(self, namespace: str) -> None:
        """Check what is installed; the store is started by the first publish.

        Raises:
            PluginError: TorchStore is missing or of a release that fails here, with the command that installs it.
        """
        check_torchstore()
        os.environ.setdefault("TORCHSTORE_LOG_LEVEL", "WARNING")  # it logs every put and get otherwise
        if os.environ.get("TORCHSTORE_USE_RDMA") == "0":
            os.environ["TORCHSTORE_RDMA_ENABLED"] = "0"

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False) -> Receipt:
        """Put every tensor; the caller may change them afterwards.

        A failure while putting publishes nothing: the version before stays the newest.

        Raises:
            ValueError: the version is not newer than the last, or a name comes twice.
            RunError: /dev/shm is too small, TorchStore fails, or the deadline passed.
        """
        if self._version is not None and version <= self._version:
            raise ValueError(f"version {version} was published after {self._version}")
        if self._own is None:
            from forge_plugin_torchstore.store import Store

            self._own = self._wait("start", Store.start(self.backend))
        slot = self._slots.pop(0) if len(self._slots) >= 2 else _Slot(len(self._slots))
        token = secrets.token_bytes(16)
        digests: dict[str, str] = {}
        try:
            self._wait("clear a token", self._own.put({slot.token: b""}))
            index = self._put_all(self._own, slot, tensors, digests if checksums else None)
            self._wait("set a token", self._own.put({slot.token: token}))
        except BaseException:
            self._slots.insert(0, slot)  # it holds nothing, so it is written first
            raise
        self._slots.append(slot)
        self._version = version
        return Receipt(
            version=version,
            num_tensors=len(index),
            num_bytes=sum(entry.size for entry in index),
            location={
                "boot": _boot_id(), "pid": os.getpid(), "store": self._own.handle(), "slot": slot.number,
                "token": token, "tensors": [attrs.astuple(entry) for entry in index],
            },
            checksums=digests if checksums else None,
        )  # fmt: skip

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """The receipt's tensors, all of them got before the first is yielded.

        Raises:
            RunError: the version is gone, its publisher is, or the deadline passed.
        """
        from forge_plugin_torchstore.packs import Entry

        location = receipt.location
        if location["boot"] == _boot_id() and not Path(f"/proc/{location['pid']}").exists():
            raise _gone(receipt, "its publisher has ended")
        number, index = location["slot"], [Entry(*entry) for entry in location["tensors"]]
        held = self._blobs.pop(number, {})
        wanted = {f"{number}/{entry.key}" for entry in index if entry.key}
        places = {key: held.get(key) for key in sorted(wanted)}
        try:
            found = self._wait("get the weights", self._get(location, places, set(held) - wanted))
        except RunError as error:
            raise _gone(receipt, error.message) from error
        try:
            blobs = {key.partition("/")[2]: blob for key, blob in found.items()}
            for entry in index:
                yield entry.name, entry.tensor(blobs)
        finally:
            self._blobs[number] = found

    def close(self) -> None:
        """End the store of this process; a reader that has got a version keeps it."""
        joined, own = list(self._joined.values()), self._own
        keys = [key for slot in self._slots for key in slot.sizes]
        self._joined.clear()
        self._own = None
        self._slots.clear()
        self._blobs.clear()
        for store in joined:
            self._wait("stop", store.stop())
        if own is not None:
            try:
                if keys:  # a store process that is killed with them leaves them in /dev/shm until this one ends
                    self._wait("delete the weights", own.delete(keys))
            finally:
                self._wait("stop", own.stop())
        self._thread.close()

    def _put_all(
        self, store: Store, slot: _Slot, tensors: Iterable[tuple[str, torch.Tensor]], digests: dict[str, str] | None
    ) -> list[Entry]:
        """Put batch after batch, then delete what the slot held and this version has not."""
        from forge_plugin_torchstore.packs import packed

        index: list[Entry] = []
        batch: dict[str, torch.Tensor] = {}
        wanted = set()
        for name, blob in packed(_digested(tensors, digests), index):
            key = f"{slot.number}/{name}"
            wanted.add(key)
            batch[key] = blob
            if sum(held.nbytes for held in batch.values()) >= BATCH_BYTES:
                self._put(store, slot, batch)
        self._put(store, slot, batch)
        stale = sorted(slot.sizes.keys() - wanted)
        if stale:
            self._wait("delete old tensors", store.delete(stale))
            for key in stale:
                del slot.sizes[key]
        return index

    def _put(self, store: Store, slot: _Slot, batch: dict[str, torch.Tensor]) -> None:
        if not batch:
            return
        sizes = {key: blob.nbytes for key, blob in batch.items()}
        if self.backend in ("auto", "shared-memory"):
            require_shared_memory(sum(size for key, size in sizes.items() if key not in slot.sizes))
        slot.sizes |= sizes
        self._wait("put the weights", store.put(batch))
        batch.clear()

    async def _get(
        self, location: Mapping[str, Any], places: Mapping[str, torch.Tensor | None], stale: set[str]
    ) -> dict[str, torch.Tensor]:
        """Every blob, then the token: it has to be the version's still."""
        from forge_plugin_torchstore.store import Store

        handle = location["store"]
        if handle not in self._joined:
            self._joined[handle] = await Store.join(handle)
        store = self._joined[handle]
        store.forget(stale)
        found = await store.get(places) if places else {}
        token = _Slot(location["slot"]).token
        if (await store.get({token: None}))[token] != location["token"]:
            raise RunError("a newer one has taken its place")
        return found

    def _wait(self, what: str, step: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.call(what, self.timeout_s, lambda: asyncio.run(step))
        except ForgeError:
            raise
        except Exception as error:  # TorchStore and Monarch raise nothing narrower
            text = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise RunError(f"TorchStore could not {what}: {text}", where="transport torchstore") from error


def _digested(
    tensors: Iterable[tuple[str, torch.Tensor]], digests: dict[str, str] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors; their digests on the way, when asked for."""
    for name, tensor in tensors:
        if digests is not None:
            digests[name] = tensor_digest(tensor)
        yield name, tensor


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _gone(receipt: Receipt, why: str) -> RunError:
    return RunError(
        f"version {receipt.version} of the weights is gone: {why}",
        where="transport torchstore", fix="fetch the newest version; only two are kept",
    )  # fmt: skip
