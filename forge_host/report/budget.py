"""Keeps work that only watches a run to a share of its time: the dearer it is, the rarer it is done.

    budget = Budget(share=0.001)
    with budget as due:
        if due:
            sample()          # took 3 ms, so the next one is due in 3 s
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

import attrs


@attrs.define
class Budget:
    """Args: share: of the time that may be spent inside `with`; clock: seconds, for tests."""

    share: float
    clock: Callable[[], float] = time.perf_counter
    _next: float = attrs.field(init=False, default=-1e300)
    _began: float = attrs.field(init=False, default=0.0)
    _due: bool = attrs.field(init=False, default=False)

    def __enter__(self) -> bool:
        self._began = self.clock()
        self._due = self._began >= self._next
        return self._due

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._due:
            now = self.clock()
            self._next = now + (now - self._began) / self.share
