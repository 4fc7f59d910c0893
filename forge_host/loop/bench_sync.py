"""How fast a transport moves weights: publish here, fetch and copy in another process, against plain copies.

    for row in bench_sync(["builtin/shm", "builtin/file"], models=["135M"]):
        print(row)

Both copies are counted: `publish_s` until the trainer may go on, `fetch_s` until a reader has every byte in memory of
its own. `ratio` is their sum over twice the time of one plain copy of the same tensors, measured in the same run
between the repeats: memcpy on a CPU, device to device on a GPU. `forge-host bench sync` prints the table.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.builtin.transports.memory import available_bytes, gib
from forge_host.errors import RunError, UsageError

if TYPE_CHECKING:
    import torch

#: Times the model that one measurement holds: the publisher's, the transport's two versions and what readers make of
#: them, and the reader's two copies.
COPIES_HELD = 6
DEADLINE_S = 600.0
#: name: (layers, hidden, intermediate, key and value width, vocabulary, tied embeddings)
MODELS = {
    "135M": (30, 576, 1536, 192, 49152, True),
    "0.6B": (28, 1024, 3072, 1024, 151936, True),
    "1.7B": (28, 2048, 6144, 1024, 151936, True),
    "8B": (36, 4096, 12288, 1024, 151936, False),
}


@attrs.frozen(kw_only=True)
class SyncTimes:
    """The best of the repeats, as other work on the machine only adds. Times in seconds, rates in bytes per second."""

    transport: str
    model: str
    device: str
    num_bytes: int
    num_tensors: int
    publish_s: float
    fetch_s: float
    copy_s: float

    @property
    def rate(self) -> float:
        return self.num_bytes / (self.publish_s + self.fetch_s)

    @property
    def ratio(self) -> float:
        """1 is as fast as two plain copies."""
        return (self.publish_s + self.fetch_s) / (2 * self.copy_s)


def model_shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Tensors of a llama-like model, by name.

    Raises:
        UsageError: no such size.
    """
    if model not in MODELS:
        raise UsageError(f"no model size {model!r}", fix=f"take one of {', '.join(MODELS)}")
    layers, hidden, intermediate, kv, vocabulary, tied = MODELS[model]
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocabulary, hidden), "norm": (hidden,)}
    shapes |= {} if tied else {"head": (vocabulary, hidden)}
    for i in range(layers):
        shapes |= {f"{i}.q": (hidden, hidden), f"{i}.k": (kv, hidden), f"{i}.v": (kv, hidden)}
        shapes |= {f"{i}.o": (hidden, hidden), f"{i}.gate": (intermediate, hidden), f"{i}.up": (intermediate, hidden)}
        shapes |= {f"{i}.down": (hidden, intermediate), f"{i}.norm1": (hidden,), f"{i}.norm2": (hidden,)}
    return shapes


def model_tensors(model: str, device: str = "cpu") -> dict[str, torch.Tensor]:
    """`model_shapes` filled, bfloat16."""
    import torch

    shapes = model_shapes(model)
    return {name: torch.full(shape, 0.5, dtype=torch.bfloat16, device=device) for name, shape in shapes.items()}


def no_room(model: str, device: str = "cpu") -> str:
    """Why a model cannot be measured here, or ""."""
    size = 2 * sum(math.prod(shape) for shape in model_shapes(model).values())
    need, free = COPIES_HELD * size, available_bytes()
    if device != "cpu":
        import torch

        free = torch.cuda.mem_get_info(device)[0]
    if need <= free:
        return ""
    return f"{model} needs {gib(need)} ({COPIES_HELD} times its {gib(size)}), {gib(free)} are free on {device}"


def bench_sync(
    transports: Sequence[str],
    *,
    models: Sequence[str] = ("135M",),
    repeats: int = 7,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    reader_device: str | None = None,
) -> Iterator[SyncTimes]:
    """One row per model size and transport.

    Args:
        repeats: versions published; the best counts.
        config: settings of every transport.
        device: where the publisher's tensors are: "cpu", "cuda" or "cuda:N".
        reader_device: where the reader's copies are; None is the same.

    Raises:
        UsageError, PluginError: no such transport, setting or size.
        RunError: the transport fails.
    """
    for model in models:
        tensors = model_tensors(model, device)
        for transport in transports:
            yield _measure(transport, model, tensors, repeats, dict(config or {}), device, reader_device or device)


def fit(rows: Sequence[SyncTimes]) -> tuple[float, float]:
    """Least squares over sizes of one transport: (fixed seconds, seconds per byte); two sizes or more."""
    sizes = [float(row.num_bytes) for row in rows]
    slope, fixed = statistics.linear_regression(sizes, [row.publish_s + row.fetch_s for row in rows])
    return fixed, slope


def build(transport: str, config: Mapping[str, Any], namespace: str) -> Any:
    """An opened transport."""
    from forge_host.plugins import PluginHost
    from forge_host.types import Use

    made = PluginHost.load().build("transport", Use(transport, dict(config)))
    made.open(namespace)
    return made


def ask(pipe: Any, message: Any, who: str) -> Any:
    """The reader's answer.

    Raises:
        RunError: it died or is silent for ten minutes; or what it raised.
    """
    pipe.send(message)
    if not pipe.poll(DEADLINE_S):
        raise RunError(f"the reader of {who} did not answer within {DEADLINE_S:g} s")
    try:
        answer = pipe.recv()
    except EOFError as error:
        raise RunError(f"the reader of {who} died", fix="see its output above") from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _measure(
    transport: str, model: str, tensors: dict[str, torch.Tensor], repeats: int, config: Any, device: str, other: str
) -> SyncTimes:
    with closing(build(transport, config, "bench")) as sender:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        reader = context.Process(target=_read, args=(there, transport, config, other), daemon=True)
        reader.start()
        there.close()  # or this process would wait for ever for a reader that died
        publish, fetch, copy = [], [], []
        for version in range(1, repeats + 1):
            began = time.perf_counter()
            receipt = sender.publish(version, tensors.items())
            synchronize(device)
            publish.append(time.perf_counter() - began)
            fetched, copied = ask(here, receipt, transport)
            fetch.append(fetched)
            copy.append(copied)
        here.send(None)
        reader.join(30)
    return SyncTimes(
        transport=transport, model=model, device=device, num_bytes=receipt.num_bytes, num_tensors=receipt.num_tensors,
        publish_s=min(publish), fetch_s=min(fetch), copy_s=min(copy),
    )  # fmt: skip


def _read(pipe: Any, transport: str, config: Any, device: str) -> None:
    """Fetch each receipt into tensors of one's own, and time a plain copy of the same tensors."""

    own: dict[str, torch.Tensor] = {}
    try:
        with closing(build(transport, config, "bench")) as reader:
            while (receipt := pipe.recv()) is not None:
                if not own:
                    own = {name: tensor.to(device, copy=True) for name, tensor in reader.fetch(receipt)}
                    again = {name: tensor.clone() for name, tensor in own.items()}
                synchronize(device)
                began = time.perf_counter()
                for name, tensor in reader.fetch(receipt):
                    own[name].copy_(tensor)
                synchronize(device)
                fetched = time.perf_counter()
                for name, tensor in own.items():
                    again[name].copy_(tensor)
                synchronize(device)
                pipe.send((fetched - began, time.perf_counter() - fetched))
    except Exception as error:  # the caller raises it
        pipe.send(error)


def synchronize(device: str) -> None:
    """Wait for what is queued on a GPU."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)
