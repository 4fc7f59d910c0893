"""Two processes joined by gloo, which compute one step as data-parallel ranks do. Kept for all contracts of a test run.

    loss, gradient = two_ranks(spec, tensors)

Each rank takes every second row, computes its contribution with the step's totals, and sums loss and gradient over the
ranks: what a trainer does.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

WORLD = 2
_running: list[_Pair] = []


def two_ranks(spec: Mapping[str, Any], tensors: Mapping[str, Tensor], features: Tensor) -> tuple[float, Tensor]:
    """Loss and gradient of a shared parameter w [F], where logprobs are `tensors["logprobs"] + features @ w`.

    Args:
        spec: arguments of `forge_host.testing.evaluate.make_objective`; they are pickled.
        features: [B, T, F].

    Raises:
        RuntimeError: a rank failed; its error output is in the message.
    """
    if not _running:
        _running.append(_Pair())
    return _running[0].run((dict(spec), dict(tensors), features))


def shared_gradient(
    spec: Mapping[str, Any], tensors: Mapping[str, Tensor], features: Tensor, rows: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """The contribution of some rows to the step's loss, and to the gradient of w."""
    from forge_host.rl import StepTotals
    from forge_host.testing.evaluate import make_objective

    w = torch.zeros(features.shape[-1], dtype=features.dtype, requires_grad=True)
    mine = {name: value[rows] for name, value in tensors.items()}
    mine["logprobs"] = mine["logprobs"] + features[rows] @ w
    objective = make_objective(**spec)
    loss, _ = objective(mine, StepTotals.of([tensors["padding_mask"]]))
    loss.backward()
    assert w.grad is not None
    return loss.detach(), w.grad


class _Pair:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forge-ranks-")
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "forge_host.testing.ranks", str(rank), f"{self._folder.name}/store"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for rank in range(WORLD)
        ]  # fmt: skip
        atexit.register(self.close)

    def run(self, task: Any) -> tuple[float, Tensor]:
        data = pickle.dumps(task)
        for rank in self._ranks:
            assert rank.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                pickle.dump(data, rank.stdin)
                rank.stdin.flush()
        answers = [self._answer(index) for index in range(WORLD)]
        assert torch.equal(answers[0][1], answers[1][1])
        return answers[0]

    def _answer(self, index: int) -> tuple[float, Tensor]:
        out = self._ranks[index].stdout
        assert out is not None
        try:
            answer: Any = pickle.load(out)
        except EOFError:
            self.close()
            raise RuntimeError(f"rank {index} of 2 died (its output is above)") from None
        if isinstance(answer, str):
            self.close()
            raise RuntimeError(f"rank {index} of 2: {answer}")
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        if self in _running:
            _running.remove(self)
        for rank in self._ranks:
            if rank.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(timeout=5)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
        self._folder.cleanup()


def _serve(rank: int, store: str, out: BinaryIO) -> None:
    import datetime

    import torch.distributed as dist

    torch.set_num_threads(1)
    # The deadline ends a rank whose partner died.
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timeout)
    while True:
        try:
            spec, tensors, features = pickle.loads(pickle.load(sys.stdin.buffer))
        except EOFError:
            break
        try:
            loss, grad = shared_gradient(spec, tensors, features, slice(rank, None, WORLD))
            dist.all_reduce(loss)
            dist.all_reduce(grad)
            answer: Any = float(loss), grad
        except Exception as error:  # Whatever a loss under test raises goes to the test as it is.
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, out)
        out.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    # A loss that prints must not write into the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    _serve(int(sys.argv[1]), sys.argv[2], answers)
