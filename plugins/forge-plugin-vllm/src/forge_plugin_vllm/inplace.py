"""Weights straight into a running model's parameters: a copy each, instead of vLLM's reload of every layer.

    plan = record(model, {name: tensor.shape for name, tensor in tensors.items()})
    if plan.problem() is None and plan.differs(tensors) is None:
        plan.write(tensors)

Which slice of which fused parameter a checkpoint's tensor belongs to (q, k, v; gate, up; the ranks of tensor
parallelism) is not listed here: the model's own `load_weights` is run once with its copies noted down instead of made.
Parameters keep their memory, so CUDA graphs stay valid. A plan is used only when every element of every parameter is
written exactly once by it, and when, after one update by vLLM's reload, the parameters held bit for bit what the plan
would have written: then nothing happens to the weights between loading and use that a copy would miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@attrs.frozen(eq=False)
class Piece:
    """A view of a parameter and the view of a (contiguous) checkpoint tensor that is copied into it."""

    name: str
    place: Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    whole: bool

    def source(self, tensors: Mapping[str, Tensor]) -> Tensor:
        tensor = tensors[self.name].contiguous()
        if self.whole:  # no view where none is needed: 254 of them take half as long as the copy on a GPU
            return tensor if tensor.shape == self.size else tensor.view(self.size)
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


@attrs.frozen(eq=False)
class Plan:
    """Every copy of one update. `fixed` are views that loading fills with a constant: they keep it.

    Args:
        unknown: what the model's loader did that is no copy of a checkpoint tensor into a parameter; "" if nothing.
    """

    parameters: Mapping[str, Tensor]
    pieces: tuple[Piece, ...]
    fixed: tuple[Tensor, ...]
    unused: tuple[str, ...]
    unknown: str

    def problem(self) -> str | None:
        """Why this plan is not one for whole updates, by its shape alone; None when it is."""
        if self.unknown:
            return self.unknown
        if self.unused:
            return f"the model's loader does not use tensor {self.unused[0]}"
        written: dict[int, list[Tensor]] = {}
        for view in (*(piece.place for piece in self.pieces), *self.fixed):
            written.setdefault(storage_of(view), []).append(view)
        for name, parameter in self.parameters.items():
            if not parameter.numel():
                return f"parameter {name} is empty: its weights were packed into another form"
            if not parameter.is_contiguous():
                return f"parameter {name} is not contiguous"
            device = "cpu" if parameter.is_meta else parameter.device
            counts = torch.zeros(parameter.shape, dtype=torch.uint8, device=device)
            for view in written.pop(storage_of(parameter), []):
                counts.as_strided(view.shape, view.stride(), view.storage_offset() - parameter.storage_offset()).add_(1)
            if not bool((counts == 1).all()):
                return f"parameter {name} is not written exactly once by the tensors of the checkpoint"
        return "a tensor is written outside the model's parameters" if written else None

    def differs(self, tensors: Mapping[str, Tensor]) -> str | None:
        """The first tensor that the parameters do not hold bit for bit; None when they hold them all."""
        for piece in self.pieces:
            source = piece.source(tensors).to(device=piece.place.device, dtype=piece.place.dtype)
            if not torch.allclose(piece.place, source, rtol=0, atol=0, equal_nan=True):
                return f"vLLM transforms tensor {piece.name} after loading it"
        return None

    @torch.no_grad()
    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy all of `tensors` in; on a GPU the copies are only queued."""
        sources = [piece.source(tensors) for piece in self.pieces]
        places = [piece.place for piece in self.pieces]
        if all(source.device == place.device for source, place in zip(sources, places, strict=True)):
            torch._foreach_copy_(places, sources)  # one launch for all that have one dtype
            return
        for place, source in zip(places, sources, strict=True):
            place.copy_(source, non_blocking=True)


def record(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    """The copies that `model.load_weights` would make of tensors of these names and shapes; nothing is changed."""
    # Never touched, so they take no memory; where they lie tells which of them a copy is of.
    blanks = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    recorder = _Recorder(blanks)

    def given() -> Iterator[tuple[str, Tensor]]:
        for name, blank in blanks.items():
            recorder.current = name
            yield name, blank

    load: Any = model.load_weights
    with torch.no_grad(), recorder:
        load(given())
    used = {piece.name for piece in recorder.pieces}
    return Plan(
        parameters=dict(model.named_parameters()),
        pieces=tuple(recorder.pieces),
        fixed=tuple(recorder.fixed),
        unused=tuple(name for name, blank in blanks.items() if name not in used and blank.numel()),
        unknown=recorder.unknown,
    )


def storage_of(tensor: Tensor) -> int:
    """Tells memory apart, also where there is none (meta tensors)."""
    return int(tensor.untyped_storage()._cdata)


class _Recorder(TorchDispatchMode):
    """Notes copies and fills instead of making them; everything else happens."""

    def __init__(self, blanks: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._sources = {storage_of(blank): name for name, blank in blanks.items() if blank.numel()}
        self._numel = {name: blank.numel() for name, blank in blanks.items()}
        self.pieces: list[Piece] = []
        self.fixed: list[Tensor] = []
        self.unknown, self.current = "", ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten.copy_.default:
            self._copy(args[0], args[1])
            return args[0]
        if func in (aten.fill_.Scalar, aten.zero_.default):
            if args[0].numel():
                self.fixed.append(args[0].detach())
            return args[0]
        return func(*args, **(kwargs or {}))

    def _copy(self, place: Tensor, source: Tensor) -> None:
        name = self._sources.get(storage_of(source))
        if name is None or place.shape != source.shape:
            self.unknown = self.unknown or f"the model's loader computes with tensor {self.current}"
            return
        whole = source.is_contiguous() and source.numel() == self._numel[name]
        size, stride = tuple(source.shape), tuple(source.stride())
        self.pieces.append(Piece(name, place.detach(), size, stride, int(source.storage_offset()), whole))
