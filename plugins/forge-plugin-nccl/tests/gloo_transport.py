"""`nccl` without GPUs: the transport as it is, on the CPU and through gloo."""

import os
from datetime import timedelta

import attrs
import torch
from forge_plugin_nccl.transport import Nccl
from torch.distributed import ProcessGroupGloo


class GlooBackend:
    def __init__(self, identity: str = "") -> None:
        self._identity = identity

    def device(self) -> torch.device:
        return torch.device("cpu")

    def identity(self) -> str:
        return self._identity or f"process {os.getpid()} {id(self)}"

    def group(self, store, rank: int, timeout_s: float):
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        return ProcessGroupGloo(store, rank, 2, options)

    def synchronize(self) -> None:
        pass


@attrs.define(kw_only=True)
class Gloo(Nccl):
    def _make_backend(self) -> GlooBackend:
        return GlooBackend()
