"""A named part of the trainer's work: out of memory there says so, and its time can be measured.

with Phase("the backward pass", device, spans): loss.backward()
"""

from __future__ import annotations

import time
from typing import Any

import torch

from forge_host.errors import RunError


class Phase:
    """Out of memory inside becomes an error that names the phase and what to turn down.

    Args:
        spans: seconds by phase are added here, with the device waited for before and after; None measures nothing.

    Raises:
        RunError: memory ran out.
    """

    def __init__(self, name: str, device: torch.device, spans: dict[str, float] | None = None) -> None:
        self.name, self.device, self.spans = name, device, spans

    def __enter__(self) -> None:
        if self.spans is not None:
            self._wait()
            self._began = time.perf_counter()

    def __exit__(self, _type: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
            raise RunError(
                f"out of memory in {self.name}",
                fix="lower training.micro_batch_tokens, set training.gradient_checkpointing: true, "
                "or use more processes (services.trainer.procs)",
            ) from error
        if self.spans is not None and error is None:
            self._wait()
            self.spans[self.name] = self.spans.get(self.name, 0.0) + time.perf_counter() - self._began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
