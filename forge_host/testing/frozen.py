"""Stop-gradients held constant, so that a loss that has them can be compared with finite differences.

    frozen = FrozenDetach()
    with frozen.record():
        f(x)
    with frozen.replay():
        f(x + h)                 # every `.detach()` in it gives what it gave at x

The gradient of `sg(r) * logprobs` is not the derivative of its value; it is the derivative with sg(r) held fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FrozenDetach(TorchFunctionMode):
    """Remembers the results of `Tensor.detach` in order, or gives them again."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Tensor] = []
        self._next: int | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.Tensor.detach:
            return result
        if self._next is None:
            self._seen.append(result.clone())
            return result
        self._next += 1
        return self._seen[self._next - 1]

    @contextmanager
    def record(self) -> Iterator[None]:
        self._seen, self._next = [], None
        with self:
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        self._next = 0
        with self:
            yield
