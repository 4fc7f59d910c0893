"""One TorchStore for one publisher: a process of its own holds the tensors, and this process's client of it.

    store = await Store.start("auto")                 # the publisher
    store = await Store.join(store.handle())          # a reader, in any process
    await store.put({"0/w": tensor})
    await store.get({"0/w": place})
    await store.stop()

Why not `torchstore.initialize`: it registers the store with the root of the Monarch tree, where a reader outside that
tree (a vLLM worker process) cannot find it, and nothing there ends with the publisher. The parts are the same:
`Controller`, `StorageVolume`, `LocalClient` and a strategy.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Mapping
from typing import Any

import attrs
import structlog
import torch

from forge_host.errors import RunError
from forge_plugin_torchstore.patience import outlive_others

log = structlog.get_logger()

#: Setting to the member of `torchstore.transport.TransportType`.
BACKENDS = {"auto": "Unset", "shared-memory": "SharedMemory", "gloo": "Gloo", "rpc": "MonarchRPC"}


@attrs.frozen
class Store:
    client: Any  # torchstore.client.LocalClient
    controller: Any
    mesh: Any = None  # the process of the volume, on the publisher

    @classmethod
    async def start(cls, backend: str) -> Store:
        """Start the process that holds the tensors.

        Raises:
            RunError: backend "rdma" without a device.
        """
        from monarch.actor import this_host
        from torchstore.controller import Controller
        from torchstore.storage_volume import StorageVolume

        from forge_plugin_torchstore.strategy import OneVolume

        outlive_others()
        strategy = OneVolume(_transport_type(backend))
        mesh = this_host().spawn_procs(per_host={"gpus": 1}, name=f"torchstore-{uuid.uuid4().hex[:8]}")
        volumes = mesh.spawn("volume", StorageVolume, id_func=OneVolume.get_volume_id)
        await volumes.get_id.call()  # one after the other: two actors that import TorchStore at once fail
        controller = mesh.spawn("controller", Controller)
        await controller.init.call(strategy=strategy, num_storage_volumes=1, storage_volumes=volumes)
        return attrs.evolve(await cls.join(pickle.dumps(controller)), mesh=mesh)

    @classmethod
    async def join(cls, handle: bytes) -> Store:
        from torchstore.client import LocalClient

        outlive_others()
        controller = pickle.loads(handle)
        return cls(LocalClient(controller, await controller.get_controller_strategy.call_one()), controller)

    def handle(self) -> bytes:
        """What `join` needs."""
        return pickle.dumps(self.controller)

    async def put(self, entries: Mapping[str, Any]) -> None:
        await self.client.put_batch(dict(entries))

    async def get(self, places: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
        """Values by key; a tensor is written into its place if there is one."""
        found: dict[str, Any] = await self.client.get_batch(dict(places))
        return found

    async def delete(self, keys: list[str]) -> None:
        await self.client.delete_batch(keys)

    def forget(self, keys: set[str]) -> None:
        """Unmap what this process has mapped of deleted keys."""
        self.client.strategy.transport_context.delete(keys)

    async def stop(self) -> None:
        self.client.strategy.transport_context.clear()
        if self.mesh is not None:
            await self.mesh.stop()


def _transport_type(backend: str) -> Any:
    from monarch.rdma import is_ibverbs_available
    from torchstore.transport import TransportType

    asked = os.environ.get("TORCHSTORE_USE_RDMA", "") == "1"
    if backend == "rdma" or (backend == "auto" and asked):
        if is_ibverbs_available():
            return TransportType.MonarchRDMA
        if backend == "rdma":
            raise RunError(
                "transport.backend is rdma, but Monarch finds no RDMA device (ibverbs) on this host",
                where="transport torchstore", fix="set transport.backend: auto",
            )  # fmt: skip
        log.warning("TORCHSTORE_USE_RDMA=1, but this host has no RDMA device: TorchStore takes what it finds")
    return TransportType[BACKENDS[backend]]
