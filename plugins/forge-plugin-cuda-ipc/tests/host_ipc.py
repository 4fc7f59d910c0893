"""`cuda-ipc` on memory of the host: the transport as it is, with files in place of the CUDA driver's memory."""

import mmap
import os

import attrs
import torch
from forge_plugin_cuda_ipc.driver import Memory
from forge_plugin_cuda_ipc.transport import CudaIpc

from forge_host.errors import RunError


class HostDriver:
    """Memory files; a handle is "pid/fd", as another process opens it."""

    name = "host"

    def device(self) -> str:
        return self.name

    def allocate(self, num_bytes: int) -> Memory:
        fd = os.memfd_create("host-ipc", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_bytes)
        return self._memory(fd, f"{os.getpid()}/{fd}".encode(), num_bytes)

    def free(self, memory: Memory) -> None:
        os.close(memory.address)

    def map(self, handle: bytes, num_bytes: int) -> Memory:
        pid, fd = handle.decode().split("/")
        try:
            own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RunError(f"not there: {error}") from error
        return self._memory(own, handle, num_bytes)

    def unmap(self, memory: Memory) -> None:
        os.close(memory.address)

    def synchronize(self) -> None:
        pass

    def _memory(self, fd: int, handle: bytes, num_bytes: int) -> Memory:
        return Memory(torch.frombuffer(mmap.mmap(fd, num_bytes), dtype=torch.uint8), handle, fd)


@attrs.define(kw_only=True)
class HostIpc(CudaIpc):
    def _make_driver(self) -> HostDriver:
        return HostDriver()
