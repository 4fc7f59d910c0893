"""The two ends of a transport under test: weights that show a mixture, and what the other processes do.

receipt = publisher.publish(3, weights(3).items())
assert is_version(copied(reader, receipt), 3)
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import torch

from forge_host.api import Receipt, Transport
from forge_host.loop.checksum import tensor_digest
from forge_host.testing.component import load_component

Weights = Mapping[str, torch.Tensor]
DEADLINE_S = 60.0

#: Everything a state dict may hold.
ODD: Weights = {
    "bfloat16": torch.arange(-8, 8).to(torch.bfloat16).reshape(4, 4),
    "float16": torch.linspace(-1, 1, 7).to(torch.float16),
    "float32": torch.tensor([0.0, -0.0, float("nan"), float("inf"), -1e-45]),
    "float64": torch.tensor([[1e300]], dtype=torch.float64),
    "float8_e4m3fn": torch.arange(16, dtype=torch.float32).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.arange(16, dtype=torch.float32).to(torch.float8_e5m2),
    "int64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "every-second": torch.arange(20.0)[::2],
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 5),
    "needs-grad": torch.ones(3, requires_grad=True),
}


def weights(version: int, size: int = 1000) -> dict[str, torch.Tensor]:
    """Tensors that say which version they are of, so that a mixture shows."""
    return {name: torch.full((size,), float(version), dtype=torch.float32) for name in "abcd"}


def is_version(received: Weights, version: int) -> bool:
    return list(received) == list("abcd") and all(bool((t == version).all()) for t in received.values())


def copied(reader: Transport, receipt: Receipt) -> dict[str, torch.Tensor]:
    """What `fetch` yields, copied while it is valid, in the order of the names."""
    received = {name: tensor.clone() for name, tensor in reader.fetch(receipt)}
    return {name: received[name] for name in (sorted(received) if set(received) == set("abcd") else received)}


def answer(pipe: Any) -> Any:
    """The next message of a child process.

    Raises:
        TimeoutError: it says nothing for a minute.
    """
    if not pipe.poll(DEADLINE_S):
        raise TimeoutError("the child process did not answer")
    return pipe.recv()


def _connect(reference: str, settings: Mapping[str, Any], namespace: str) -> Transport:
    transport: Transport = load_component("transport", reference, settings)
    transport.open(namespace)
    return transport


def read_all(pipe: Any, reference: str, settings: Any, namespace: str, receipt: Receipt) -> None:
    with closing(_connect(reference, settings, namespace)) as transport:
        pipe.send({name: tensor_digest(tensor) for name, tensor in transport.fetch(receipt)})


def read_one_and_wait(pipe: Any, reference: str, settings: Any, namespace: str, receipt: Receipt) -> None:
    tensors = _connect(reference, settings, namespace).fetch(receipt)
    next(tensors)
    pipe.send("reading")
    signal.pause()


def publish_one_and_a_half(pipe: Any, reference: str, settings: Any, namespace: str, _: None) -> None:
    transport = _connect(reference, settings, namespace)
    pipe.send(transport.publish(1, weights(1).items()))

    def half() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.full((1000,), 2.0)
        pipe.send("half")
        signal.pause()

    transport.publish(2, half())
