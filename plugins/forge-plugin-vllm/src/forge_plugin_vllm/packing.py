"""Weights into a model on a CPU, where vLLM packs each matrix for its kernels and keeps no other copy.

    plan = record_packed(model, {name: tensor.shape for name, tensor in tensors.items()})
    if plan.problem() is None:
        plan.write(tensors)

vLLM's reload copies every matrix into new memory, packs it and goes through each loader twice. Here a matrix is put
together in memory that is used again, while it is still in the processor's cache, or taken from the transport as it
is, also when it is made of tensors that were published one behind the other (q, k, v; gate, up); then vLLM's own
method packs it. What ends where is recorded as in `forge_plugin_vllm.inplace`.

Matrices are packed by several threads at once, each with its share of the cores: setting up each packing is work of one
thread, and as long as that takes the other cores would wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from forge_plugin_vllm.inplace import Piece, Plan, record, storage_of

WORKERS = 4  #: threads that pack at once, at most
PROBES = 4  #: rows that go through each packed matrix when two ways of packing are compared


@attrs.frozen(eq=False)
class Packed:
    """A layer without parameters of its own: the matrix that is packed for it, and what that is made of."""

    layer: Any
    pieces: tuple[Piece, ...]
    shape: tuple[int, int]
    dtype: torch.dtype

    def matrix(self, tensors: Mapping[str, Tensor], room: Tensor) -> Tensor:
        sources = [piece.source(tensors) for piece in self.pieces]
        if self._in_place(sources):
            return sources[0].as_strided(self.shape, (self.shape[1], 1))
        out = room[: self.shape[0] * self.shape[1]].view(self.shape)
        for piece, source in zip(self.pieces, sources, strict=True):
            place = piece.place
            out.as_strided(place.shape, place.stride(), place.storage_offset()).copy_(source)
        return out

    def pack(self, tensors: Mapping[str, Tensor], room: Tensor) -> None:
        layer = self.layer
        layer.weight = nn.Parameter(self.matrix(tensors, room), requires_grad=False)
        layer.cpu_linear = None  # the old packed matrix goes first, and the new one takes its memory
        layer.quant_method.process_weights_after_loading(layer)
        if layer.weight.numel():
            raise RuntimeError(f"vLLM did not pack the weights of {type(layer).__name__}")

    def _in_place(self, sources: list[Tensor]) -> bool:
        """The sources lie in memory as the whole matrix would: one alone, or published one behind the other."""
        first = sources[0]
        begin, storage = first.storage_offset(), storage_of(first)
        return all(
            source.dtype == self.dtype
            and source.is_contiguous()
            and piece.place.is_contiguous()
            and storage_of(source) == storage
            and source.storage_offset() - begin == piece.place.storage_offset()
            for piece, source in zip(self.pieces, sources, strict=True)
        )


@attrs.define(eq=False)
class PackingPlan:
    """Every copy and packing of one update.

    Args:
        plan: of all tensors, on parameters as they were before packing.
        packed: layers whose parameters are packed away.
        kept: layers that pack a matrix and keep it too (embeddings); those that share one stand together.
        rooms: for putting a matrix together, one for each thread.
        pool: these threads. They stay, because OpenMP takes long to get to know new ones.
    """

    plan: Plan
    packed: tuple[Packed, ...]
    kept: tuple[tuple[Any, ...], ...]
    rooms: tuple[Tensor, ...]
    pool: ThreadPoolExecutor

    def problem(self) -> str | None:
        """Why this plan is not one for whole updates; None when it is."""
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod

        for each in self.packed:
            if not isinstance(each.layer.quant_method, UnquantizedLinearMethod):
                return f"{type(each.layer.quant_method).__name__} packs the weights of {type(each.layer).__name__}"
        return self.plan.problem()

    @torch.no_grad()
    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy and pack all of `tensors`."""
        # What is kept first, as it takes longest. One iterator for all threads, as a task for each matrix would wake
        # this thread as often; it packs nothing itself, since its helpers would wait spinning.
        jobs: Iterator[Packed | None] = iter((None, *self.packed))
        inference = torch.is_inference_mode_enabled()  # each thread has a mode of its own

        def work(room: Tensor) -> None:
            with torch.inference_mode(inference), torch.no_grad():
                for each in jobs:
                    try:
                        if each is None:
                            self._keep(tensors)
                        else:
                            each.pack(tensors, room)
                    except BaseException:
                        list(jobs)  # the other threads stop too: the tensors are the caller's again
                        raise

        threads = torch.get_num_threads()
        try:
            working = [self.pool.submit(work, room) for room in self.rooms]
            wait(working)
            for each in working:
                each.result()
        finally:
            torch._C.set_num_threads(threads)  # MKL's setting is one for all threads

    def _keep(self, tensors: Mapping[str, Tensor]) -> None:
        for piece in self._direct():
            piece.place.copy_(piece.source(tensors))
        for first, *others in self.kept:
            for layer in (first, *others):
                layer.cpu_linear = None
            first.quant_method.process_weights_after_loading(first)
            for other in others:
                other.cpu_linear = first.cpu_linear

    @torch.no_grad()
    def outputs(self) -> list[Tensor]:
        """What every packed matrix makes of the same input, and what is kept as it is."""
        made = [piece.place.clone() for piece in self._direct()]
        layers = [(each.layer, each.shape[1], each.dtype) for each in self.packed]
        layers += [(layer, layer.weight.shape[1], layer.weight.dtype) for group in self.kept for layer in group]
        for layer, width, dtype in layers:
            rows = torch.randn(PROBES, width, generator=torch.Generator().manual_seed(width)).to(dtype)
            made.append(layer.cpu_linear(rows, layer.weight, None))
        return made

    def _direct(self) -> Iterator[Piece]:
        return (piece for piece in self.plan.pieces if not piece.place.is_meta)


def record_packed(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> PackingPlan:
    """The copies that loading tensors of these names and shapes takes; the model is as before afterwards."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    with _unpacked(model) as replaced:
        plan = record(model, shapes)
    packed = []
    for layer, name, blank in replaced:
        mine = tuple(piece for piece in plan.pieces if storage_of(piece.place) == storage_of(blank))
        if name != "weight" or blank.ndim != 2 or not mine:
            why = f"parameter {name} of {type(layer).__name__} is packed away, and nothing is loaded into it"
            plan = attrs.evolve(plan, unknown=plan.unknown or why)
            continue
        packed.append(Packed(layer, mine, (blank.shape[0], blank.shape[1]), blank.dtype))
    groups: dict[int, list[Any]] = {}
    modules: Iterator[Any] = model.modules()
    for module in modules:
        if hasattr(module, "cpu_linear") and module.weight.numel():
            groups.setdefault(storage_of(module.weight), []).append(module)
    kept = tuple(tuple(group) for group in groups.values() if any(isinstance(m, ParallelLMHead) for m in group))
    largest = max((each.shape[0] * each.shape[1] for each in packed), default=0)
    dtype = packed[0].dtype if packed else torch.bfloat16
    threads = torch.get_num_threads()
    workers = min(WORKERS, threads)
    rooms = tuple(torch.empty(largest, dtype=dtype) for _ in range(workers))
    pool = ThreadPoolExecutor(workers, "pack", use_threads, (max(1, threads // workers),))
    return PackingPlan(plan, tuple(packed), kept, rooms, pool)


def use_threads(count: int) -> None:
    """Cores that torch and OpenMP use for work of this thread, whatever another thread sets later."""
    torch._C.set_num_threads(count)  # vLLM's worker replaces `torch.set_num_threads` by a function that does nothing
    torch.get_num_threads()  # a thread's first question sets its number to the process's latest: to be asked now


@contextmanager
def _unpacked(model: nn.Module) -> Iterator[list[tuple[Any, str, Tensor]]]:
    """The model with the parameters that were packed away, without memory (on "meta"), as vLLM's reload makes them."""
    from vllm.model_executor.model_loader.reload.layerwise import _get_original_loader, get_layerwise_info
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

    replaced, before = [], []
    try:
        for layer in model.modules():
            known = get_layerwise_info(layer).restore_metadata[0]
            for name, parameter in list(layer._parameters.items()):
                if parameter is not None and name in known and known[name].shape != parameter.shape:
                    blank = restore_layer_refs(known[name], layer)
                    if hasattr(blank, "weight_loader"):  # a reload leaves its own, which does nothing afterwards
                        blank.weight_loader = _get_original_loader(blank)
                    before.append((layer, name, parameter))
                    delattr(layer, name)
                    layer.register_parameter(name, blank)
                    replaced.append((layer, name, blank))
        yield replaced
    finally:
        for layer, name, parameter in before:
            delattr(layer, name)
            layer.register_parameter(name, parameter)
