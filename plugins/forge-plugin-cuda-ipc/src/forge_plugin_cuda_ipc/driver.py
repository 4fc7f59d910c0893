"""The four calls of the CUDA driver that share memory between processes, and tensors over such memory.

    driver = CudaDriver()
    mine = driver.allocate(1 << 20)             # mine.tensor: uint8 [1048576] on the GPU
    theirs = driver.map(mine.handle, 1 << 20)   # in another process

Why not `torch.multiprocessing.reductions`: it shares blocks of PyTorch's allocator, wants every handle consumed exactly
once (a version may have no reader, or two), keeps counters in /dev/shm, and does not go with every allocator setting.
Memory of one's own is exported once and mapped once; publishing a version then costs its copy only.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from forge_host.builtin.transports.memory import gib
from forge_host.errors import RunError

if TYPE_CHECKING:
    import torch

LAZY_PEER_ACCESS = 1  #: CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
OUT_OF_MEMORY = 2  #: CUDA_ERROR_OUT_OF_MEMORY


@attrs.frozen(eq=False)
class Memory:
    """`tensor`: uint8 [bytes]; valid until `driver.free` or `driver.unmap`. `handle` names it to other processes."""

    tensor: torch.Tensor
    handle: bytes
    address: int


class Driver(Protocol):
    """What the transport asks of a device."""

    def device(self) -> str:
        """Identifies the device over processes."""

    def allocate(self, num_bytes: int) -> Memory: ...

    def free(self, memory: Memory) -> None: ...

    def map(self, handle: bytes, num_bytes: int) -> Memory: ...

    def unmap(self, memory: Memory) -> None: ...

    def synchronize(self) -> None:
        """Wait for the copies of this thread's stream."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class _Array:
    """Device memory as `torch.as_tensor` takes it."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


class CudaDriver:
    """The current CUDA device of this process.

    Raises:
        RunError: there is none.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RunError(
                "the transport cuda-ipc needs a GPU in this process, and there is none",
                fix="set transport: shm, or place trainer and generator on the GPU (services.*.with_gpus)",
            )
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._index = torch.cuda.current_device()
        self._uuid = str(torch.cuda.get_device_properties(self._index).uuid)
        self._own: dict[bytes, Memory] = {}  # the driver refuses to map a process's own memory

    def device(self) -> str:
        return self._uuid

    def allocate(self, num_bytes: int) -> Memory:
        """
        Raises:
            RunError: not enough memory on the GPU, or the driver cannot share it.
        """
        import torch

        self._enter()
        address = ctypes.c_uint64()
        code = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(num_bytes))
        if code == OUT_OF_MEMORY:
            torch.cuda.empty_cache()
            code = self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(num_bytes))
        if code == OUT_OF_MEMORY:
            free, _ = torch.cuda.mem_get_info(self._index)
            raise RunError(
                f"out of memory while publishing the weights: {gib(num_bytes)} needed on the GPU, {gib(free)} free",
                fix="lower generator.gpu_memory_utilization or training.micro_batch_tokens, or set transport: shm",
            )
        self._check(code, "cuMemAlloc")
        handle = _Handle()
        try:
            self._check(self._cuda.cuIpcGetMemHandle(ctypes.byref(handle), address), "cuIpcGetMemHandle")
        except RunError:
            self._cuda.cuMemFree_v2(address)
            raise
        memory = self._memory(address.value, bytes(handle), num_bytes)
        self._own[memory.handle] = memory
        return memory

    def free(self, memory: Memory) -> None:
        self._enter()
        self._own.pop(memory.handle, None)
        self._check(self._cuda.cuMemFree_v2(ctypes.c_uint64(memory.address)), "cuMemFree")

    def map(self, handle: bytes, num_bytes: int) -> Memory:
        """
        Raises:
            RunError: the memory is gone, or the driver (often a container's) does not share it.
        """
        if handle in self._own:
            return self._own[handle]
        self._enter()
        address = ctypes.c_uint64()
        code = self._cuda.cuIpcOpenMemHandle_v2(
            ctypes.byref(address), _Handle.from_buffer_copy(handle), ctypes.c_uint(LAZY_PEER_ACCESS)
        )
        self._check(code, "cuIpcOpenMemHandle")
        return self._memory(address.value, handle, num_bytes)

    def unmap(self, memory: Memory) -> None:
        if memory.handle in self._own:
            return
        self._enter()
        self._check(self._cuda.cuIpcCloseMemHandle(ctypes.c_uint64(memory.address)), "cuIpcCloseMemHandle")

    def synchronize(self) -> None:
        import torch

        torch.cuda.current_stream(self._index).synchronize()

    def _enter(self) -> None:
        """Make PyTorch's context the current one of this thread."""
        import torch

        torch.cuda.set_device(self._index)

    def _memory(self, address: int, handle: bytes, num_bytes: int) -> Memory:
        import torch

        array: Any = _Array(address, num_bytes)
        return Memory(torch.as_tensor(array, device=f"cuda:{self._index}"), handle, address)

    def _check(self, code: int, call: str) -> None:
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        name = (text.value or b"unknown").decode()
        raise RunError(
            f"the GPU's memory cannot be shared between processes: {call} gave {name} ({code})",
            fix="set transport: shm; in a container, trainer and generator need one IPC and process namespace",
        )
