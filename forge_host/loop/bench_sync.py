"""How fast a transport moves weights: publish here, fetch and copy in another process, against plain memcpy.

    for row in bench_sync(["builtin/shm", "builtin/file"], models=["135M"]):
        print(row)

    python -m forge_host.loop.bench_sync builtin/shm builtin/file --models 135M 0.6B

Both copies are counted: `publish_s` until the trainer may go on, `fetch_s` until a reader has every byte in memory of
its own. `ratio` is their sum over twice the time of one memcpy of the same bytes, measured between the repeats.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.errors import UsageError

if TYPE_CHECKING:
    import torch

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
    num_bytes: int
    num_tensors: int
    publish_s: float
    fetch_s: float
    memcpy_s: float

    @property
    def rate(self) -> float:
        return self.num_bytes / (self.publish_s + self.fetch_s)

    @property
    def ratio(self) -> float:
        """1 is as fast as two memcpys."""
        return (self.publish_s + self.fetch_s) / (2 * self.memcpy_s)

    def __str__(self) -> str:
        return (
            f"{self.transport} {self.model}: {self.num_bytes / 1e6:.0f} MB, {self.num_tensors} tensors, publish "
            f"{self.publish_s:.3f} s, fetch {self.fetch_s:.3f} s, {self.rate / 1e9:.2f} GB/s, "
            f"{self.ratio:.2f} x two memcpys ({self.memcpy_s:.3f} s each)"
        )


def model_tensors(model: str) -> dict[str, torch.Tensor]:
    """Tensors of a llama-like model's shapes, bfloat16.

    Raises:
        UsageError: no such size.
    """
    import torch

    if model not in MODELS:
        raise UsageError(f"no model size {model!r}", fix=f"take one of {', '.join(MODELS)}")
    layers, hidden, intermediate, kv, vocabulary, tied = MODELS[model]
    shapes = {"embed": (vocabulary, hidden), "norm": (hidden,)} | ({} if tied else {"head": (vocabulary, hidden)})
    for i in range(layers):
        shapes |= {
            f"{i}.q": (hidden, hidden),
            f"{i}.k": (kv, hidden),
            f"{i}.v": (kv, hidden),
            f"{i}.o": (hidden, hidden),
        }
        shapes |= {f"{i}.gate": (intermediate, hidden), f"{i}.up": (intermediate, hidden)}
        shapes |= {f"{i}.down": (hidden, intermediate), f"{i}.norm1": (hidden,), f"{i}.norm2": (hidden,)}
    return {name: torch.full(shape, 0.5, dtype=torch.bfloat16) for name, shape in shapes.items()}


def bench_sync(
    transports: Sequence[str], *, models: Sequence[str] = ("135M",), repeats: int = 7, config: Any = None
) -> Iterator[SyncTimes]:
    """One row per transport and model size.

    Raises:
        UsageError, PluginError: no such transport or size.
        RunError: the transport fails.
    """
    for model in models:
        tensors = model_tensors(model)
        for transport in transports:
            yield _measure(transport, model, tensors, repeats, config or {})


def fit(rows: Sequence[SyncTimes]) -> tuple[float, float]:
    """Least squares over sizes of one transport: (fixed seconds, seconds per byte); two sizes or more."""
    sizes = [float(row.num_bytes) for row in rows]
    slope, fixed = statistics.linear_regression(sizes, [row.publish_s + row.fetch_s for row in rows])
    return fixed, slope


def _measure(transport: str, model: str, tensors: dict[str, torch.Tensor], repeats: int, config: Any) -> SyncTimes:
    from forge_host.plugins import PluginHost
    from forge_host.types import Use

    with closing(PluginHost.load().build("transport", Use(transport, config))) as sender:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        reader = context.Process(target=_read, args=(there, transport, config), daemon=True)
        reader.start()
        there.close()  # or this process would wait for ever for a reader that died
        publish, fetch, memcpy = [], [], []
        sender.open("bench")
        for version in range(1, repeats + 1):
            began = time.perf_counter()
            receipt = sender.publish(version, tensors.items())
            publish.append(time.perf_counter() - began)
            here.send(receipt)
            answer = here.recv()
            if isinstance(answer, Exception):
                raise answer
            fetch.append(answer[0])
            memcpy.append(answer[1])
        here.send(None)
        reader.join(30)
    return SyncTimes(
        transport=transport, model=model, num_bytes=receipt.num_bytes, num_tensors=receipt.num_tensors,
        publish_s=min(publish), fetch_s=min(fetch),
        memcpy_s=min(memcpy),
    )  # fmt: skip


def _read(pipe: Any, transport: str, config: Any) -> None:
    """Fetch each receipt into tensors of one's own, and time a memcpy of the same bytes in the same way."""

    from forge_host.plugins import PluginHost
    from forge_host.types import Use

    own: dict[str, torch.Tensor] = {}
    with closing(PluginHost.load().build("transport", Use(transport, config))) as reader:
        reader.open("bench")
        while (receipt := pipe.recv()) is not None:
            try:
                if not own:
                    own = {name: tensor.clone() for name, tensor in reader.fetch(receipt)}
                    again = {name: tensor.clone() for name, tensor in own.items()}
                began = time.perf_counter()
                for name, tensor in reader.fetch(receipt):
                    own[name].copy_(tensor)
                fetched = time.perf_counter()
                for name, tensor in own.items():
                    again[name].copy_(tensor)
                pipe.send((fetched - began, time.perf_counter() - fetched))
            except Exception as error:  # the caller raises it
                pipe.send(error)
                return


def main() -> None:
    parser = argparse.ArgumentParser(description="Time weight-sync transports.")
    parser.add_argument("transports", nargs="+")
    parser.add_argument("--models", nargs="+", default=["135M"], choices=sorted(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rows = []
    for row in bench_sync(options.transports, models=options.models, repeats=options.repeats):
        print(row, flush=True)
        rows.append(row)
    for transport in options.transports if len(options.models) > 1 else ():
        fixed, per_byte = fit([row for row in rows if row.transport == transport])
        print(f"{transport}: {fixed * 1e3:.1f} ms + {per_byte * 1e9:.3f} s/GB")


if __name__ == "__main__":
    main()
