"""Two processes and a stream of bytes between their GPUs: an NCCL communicator of two ranks.

    group = Group(NcclBackend(), store, rank=0, timeout_s=60)      # in the sender; rank 1 in the receiver
    group.send(flat, lost=lambda: False)                           # group.receive(flat) over there

The communicator is not the trainer's default process group: vLLM joins its weight transfer in the same way, so that a
generator can come, die and come again without the trainer's ranks noticing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from forge_host.errors import RunError

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 512 << 20  #: of one transfer


class Backend(Protocol):
    """The device that tensors are on, and how a group is made there."""

    def device(self) -> torch.device: ...

    def identity(self) -> str:
        """Of the device, over processes."""

    def group(self, store: Any, rank: int, timeout_s: float) -> Any:
        """A `torch.distributed` backend of two ranks."""

    def synchronize(self) -> None: ...


class NcclBackend:
    """The current CUDA device of this process.

    Raises:
        RunError: there is none.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RunError(
                "the transport nccl needs a GPU in this process, and there is none",
                fix="set transport: shm, or place trainer and generator on GPUs (services.*.with_gpus)",
            )
        self._index = torch.cuda.current_device()

    def device(self) -> torch.device:
        import torch

        return torch.device("cuda", self._index)

    def identity(self) -> str:
        import torch

        return str(torch.cuda.get_device_properties(self._index).uuid)

    def group(self, store: Any, rank: int, timeout_s: float) -> Any:
        import torch
        from torch.distributed import ProcessGroupNCCL

        torch.cuda.set_device(self._index)
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return ProcessGroupNCCL(store, rank, 2, options)

    def synchronize(self) -> None:
        import torch

        torch.cuda.current_stream(self._index).synchronize()


class Group:
    """Rank 0 sends, rank 1 receives."""

    def __init__(self, backend: Backend, store: Any, rank: int, timeout_s: float) -> None:
        self._backend, self._timeout_s = backend, timeout_s
        self._group = backend.group(store, rank, timeout_s)

    def send(self, flat: torch.Tensor, lost: Callable[[], bool]) -> None:
        """Send every byte. `lost` says whether the receiver is gone.

        Raises:
            RunError: it is gone, or slower than the timeout.
        """
        self._move(flat, lost)

    def receive(self, flat: torch.Tensor, lost: Callable[[], bool]) -> None:
        """Fill `flat` with what is sent; as `send`."""
        self._move(flat, lost)

    def close(self, abort: bool = False) -> None:
        """Free the communicator; `abort` when the other side is gone."""
        if hasattr(self._group, "abort" if abort else "shutdown"):
            (self._group.abort if abort else self._group.shutdown)()

    def _move(self, flat: torch.Tensor, lost: Callable[[], bool]) -> None:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        try:
            for begin in range(0, flat.numel(), BUCKET_BYTES):
                work = self._group.broadcast([flat[begin : begin + BUCKET_BYTES]], options)
                self._finish(work, lost)
            self._backend.synchronize()
        except RuntimeError as error:  # what torch.distributed raises when the other side is gone
            raise RunError(f"the transfer of the weights failed: {' '.join(str(error).split())[:300]}") from error

    def _finish(self, work: Any, lost: Callable[[], bool]) -> None:
        """Wait for a transfer, looking now and then whether the other side is still there."""
        deadline, pause = time.monotonic() + self._timeout_s, 20e-6
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise RunError(f"the transfer of the weights took longer than {self._timeout_s:g} s")
            if pause > 1e-3 and lost():
                raise RunError("the other side of the transfer of the weights is gone")
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)
        work.wait()


def stay_on_this_host() -> None:
    """NCCL connects through the loopback device, unless the user has chosen one."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
