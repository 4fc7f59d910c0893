"""What a model's checkpoint must hold: names and shapes, read from the headers of its safetensors files.

check_names(expected_shapes("/models/SmolLM2"), received)      # RunError that names the tensor
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from forge_host.errors import RunError

Shape = tuple[int, ...]
TIED = "lm_head.weight"  #: may be missing or there when the input embedding is used for the output too


def expected_shapes(model_path: str) -> dict[str, Shape]:
    """Tensor name to shape, over all *.safetensors of a local Hugging Face folder; empty when it has none."""
    shapes: dict[str, Shape] = {}
    for path in sorted(Path(model_path).glob("*.safetensors")):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return shapes


def ties_embeddings(model_path: str) -> bool:
    return bool(json.loads((Path(model_path) / "config.json").read_text()).get("tie_word_embeddings"))


def kv_bytes_per_token(model_path: str, dtype_bytes: int) -> int | None:
    """Size of one token's keys and values over all layers; None when the model's configuration is not llama-like."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    try:
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * layers * config.get("num_key_value_heads", heads) * width * dtype_bytes)
    except KeyError:
        return None


def check_names(expected: Mapping[str, Shape], received: Iterable[tuple[str, Shape]], *, tied: bool) -> None:
    """Every expected tensor, no other, each of the right shape.

    Raises:
        RunError: names the first tensors that are missing, unknown, repeated or wrongly shaped.
    """
    shapes: dict[str, Shape] = {}
    for name, shape in received:
        if name in shapes:
            raise _mismatch(f"tensor {name} came twice")
        shapes[name] = tuple(shape)
    optional = {TIED} if tied else set()
    if missing := sorted(expected.keys() - shapes.keys() - optional):
        raise _mismatch(f"{_some(missing)} missing")
    if unknown := sorted(shapes.keys() - expected.keys() - optional):
        raise _mismatch(f"{_some(unknown)} unknown to the generator's model")
    for name, shape in shapes.items():
        if name in expected and shape != expected[name]:
            raise _mismatch(f"tensor {name} has shape {list(shape)} instead of {list(expected[name])}")


def _some(names: list[str]) -> str:
    head = ", ".join(names[:3])
    return f"tensor {head} is" if len(names) == 1 else f"{len(names)} tensors ({head}{', ...' * (len(names) > 3)}) are"


def _mismatch(what: str) -> RunError:
    return RunError(
        f"the trainer's weights do not fit the generator's model: {what}",
        fix="let trainer and generator use one model folder",
    )
