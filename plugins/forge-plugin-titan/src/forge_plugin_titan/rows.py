"""Published tensors as rows of parameters: what TorchTitan's way to Hugging Face's form comes to, found out once.

    plan = plan_rows(model, spec)
    if plan is not None:
        for name, tensor in plan.tensors(torch.bfloat16): ...      # as hf_tensors gives them

Why: TorchTitan splits a fused matrix into copies and copies queries and keys again to reorder them, and going through
a model's state and names takes longer than copying 1 GB on a GPU. Its hooks and adapter are shown parameters whose
elements say where they are; from then on a tensor is its parameter, rows of it, or one copy of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge_plugin_titan.models import ModelSpec
from forge_plugin_titan.weights import cast, module_state, modules, whole

_ROWS = 40  #: bits of a row's number; the parameter's number is above them


@attrs.frozen(eq=False)
class Rows:
    """A published tensor of `shape`: of `parameter`, the rows `start` + sum of i_k * steps[k], i_k below sizes[k]."""

    name: str
    parameter: Tensor
    shape: tuple[int, ...]
    start: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def tensor(self) -> Tensor:
        """A view where the rows follow each other, else a copy."""
        whole = self.parameter.detach()
        if whole.shape == self.shape and self.steps == (1,):
            return whole
        width, inner = (whole.shape[1], (whole.shape[1],)) if whole.dim() == 2 else (1, ())
        steps = (*(step * width for step in self.steps), *(1 for _ in inner))
        found = whole.as_strided((*self.sizes, *inner), steps, whole.storage_offset() + self.start * width)
        return found.reshape(self.shape)


@attrs.frozen(eq=False)
class RowPlan:
    """All published tensors, layer by layer."""

    layers: tuple[tuple[Rows, ...], ...]

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for layer in self.layers:
            yield from cast({rows.name: rows.tensor() for rows in layer}, dtype).items()


def plan_rows(model: nn.Module, spec: ModelSpec) -> RowPlan | None:
    """None where the tensors are not rows of this process's parameters: sharded or with adapters, say."""
    if spec.adapters or any(isinstance(p, DTensor) or not p.is_contiguous() for p in model.parameters()):
        return None
    adapter = spec.adapter(spec.config, None)
    layers = []
    for prefix, module in modules(model):
        layer = _layer(adapter, prefix, module, spec)
        if layer is None:
            return None
        layers.append(layer)
    return RowPlan(tuple(layers))


def _layer(adapter: Any, prefix: str, module: nn.Module, spec: ModelSpec) -> tuple[Rows, ...] | None:
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    places = list(held.values())
    if any(tensor.dim() not in (1, 2) for tensor in places):
        return None

    def shown(values: Sequence[Tensor]) -> dict[str, Tensor]:
        numbers = {f"module.{name}": value for name, value in zip(held, values, strict=True)}
        seen = torch.func.functional_call(_State(module, prefix, spec), numbers, ())
        return dict(whole(adapter, seen, spec, torch.int64)) if seen else {}

    found = shown([_down(i, tensor) for i, tensor in enumerate(places)])
    across = shown([_across(tensor) for tensor in places])
    layer = [_rows(name, marks, across[name], places) for name, marks in found.items()]
    return None if None in layer else tuple(rows for rows in layer if rows is not None)


def _rows(name: str, down: Tensor, across: Tensor, places: Sequence[Tensor]) -> Rows | None:
    """What the marks of a published tensor say of it; None when they say other than rows of one parameter."""
    if down.dim() not in (1, 2) or not down.numel():
        return None
    first = down if down.dim() == 1 else down[:, 0]
    owner = int(first[0]) >> _ROWS
    rows = [mark - (owner << _ROWS) for mark in first.tolist()]
    pattern = steps_of(rows)
    if pattern is None or not 0 <= owner < len(places):
        return None
    parameter = places[owner]
    if down.dim() != parameter.dim() or min(rows) < 0 or max(rows) >= parameter.shape[0]:
        return None
    if down.dim() == 2 and not (
        down.shape[1] == parameter.shape[1]
        and torch.equal(down, first[:, None].expand_as(down))
        and torch.equal(across, _across(parameter)[:1].expand_as(down))
    ):
        return None
    return Rows(name, parameter, tuple(down.shape), *pattern)


class _State(nn.Module):
    """`module_state` of a module as its forward pass, for `functional_call`, which exchanges the parameters."""

    def __init__(self, module: nn.Module, prefix: str, spec: ModelSpec) -> None:
        super().__init__()
        self.module, self.prefix, self.spec = module, prefix, spec

    def forward(self) -> dict[str, Tensor]:
        return module_state(self.module, self.prefix, self.spec)


def _down(owner: int, like: Tensor) -> Tensor:
    """Its owner's and its row's number in every element."""
    rows = torch.arange(like.shape[0]) + (owner << _ROWS)  # not on a GPU, whose memory may be full
    return rows if like.dim() == 1 else rows[:, None].expand(like.shape)


def _across(like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1]).expand(like.shape)


def steps_of(rows: Sequence[int]) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """Start, sizes and steps, outermost first, of nested loops that count `rows`; None when they cannot."""
    sizes: list[int] = []
    steps: list[int] = []
    while len(rows) > 1:
        step, size = rows[1] - rows[0], 2
        while size < len(rows) and rows[size] - rows[size - 1] == step:
            size += 1
        runs = [rows[i : i + size] for i in range(0, len(rows), size)]
        if step < 0 or len(rows) % size or any(run[j] != run[0] + j * step for run in runs for j in range(size)):
            return None
        sizes, steps, rows = [size, *sizes], [step, *steps], [run[0] for run in runs]
    return (rows[0], tuple(sizes) or (1,), tuple(steps) or (1,)) if rows else None
