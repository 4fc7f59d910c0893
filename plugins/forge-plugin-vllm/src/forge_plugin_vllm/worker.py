"""What runs inside each vLLM worker: `EngineArgs(worker_extension_cls="forge_plugin_vllm.worker:...")` mixes it in.

    engine.collective_rpc("forge_prepare", args=(os.getpid(),))
    engine.collective_rpc("forge_open", args=(opening,))
    digests = engine.collective_rpc("forge_load", args=(receipt, True))

Weights are fetched here and not in the engine's process, so that with tensor parallelism each worker reads its own.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import attrs

from forge_host.api import Receipt, Transport
from forge_host.errors import RunError
from forge_host.loop.checksum import tensor_digest, weights_digest
from forge_host.loop.pieces import fetch_tensors
from forge_plugin_vllm.checkpoint import Shape, check_names

PR_SET_PDEATHSIG = 1  #: of Linux's prctl


@attrs.frozen
class Opening:
    """How a worker gets at the run's weights.

    Args:
        lock: the run's plugin lock, from which the worker rebuilds its plugins; None loads what is installed.
        transport: `forge_host.types.Use` of the transport.
        namespace: the run's.
        shapes: tensors the model's checkpoint has; empty checks nothing.
        tied: whether the output embedding is the input embedding.
    """

    lock: Any
    transport: Any
    namespace: str
    shapes: Mapping[str, Shape]
    tied: bool

    def transport_here(self) -> Transport:
        from forge_host.plugins import PluginHost

        host = PluginHost.load() if self.lock is None else PluginHost.from_lock(self.lock)
        transport: Transport = host.build("transport", self.transport)
        transport.open(self.namespace)
        return transport


class WorkerExtension:
    """Methods that vLLM adds to its worker class; `model_runner` is the worker's."""

    model_runner: Any
    forge_opening: Opening
    forge_transport: Transport
    forge_plan: Any = None  #: of the copies of one update (`inplace.Plan`), once it is known to be right
    forge_loading: str = ""  #: why updates go through vLLM's reload, or "in place"

    def forge_prepare(self, engine_pid: int) -> None:
        """Sampling as `sampled.py` has it; a worker in a process of its own ends with its engine, at once."""
        from forge_plugin_vllm.sampled import install, install_on_gpu

        sampler: Any = getattr(self.model_runner, "sampler", None)
        if hasattr(sampler, "gather_logprobs"):
            install(sampler, on_cpu=self._forge_on_cpu())
        elif sampler is not None:  # of vLLM's second runner, which only GPUs have
            install_on_gpu()
        if engine_pid != os.getpid() and sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def forge_open(self, opening: Opening) -> None:
        # At every update it warns of layers without weights of their own; names and shapes are checked here.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        self.forge_opening, self.forge_transport = opening, opening.transport_here()

    def forge_load(self, receipt: Receipt, checksum: bool) -> dict[str, Any]:
        """Replace the model's weights by the receipt's.

        Every tensor is there and checked before the first one is loaded. Returns `refused`, the RunError for which
        nothing was loaded, or `digest` of what was loaded ("" when not asked for), `fetch_s`, `load_s`, and `loading`:
        "in place" or why not. An exception means that the model is no longer of one version.
        """
        began = time.perf_counter()
        tensors: Any = iter(())
        try:
            tensors = fetch_tensors(self.forge_transport, receipt)
            held = list(itertools.islice(tensors, receipt.num_tensors))
            self._forge_check(receipt, held)
        except RunError as error:  # returned, because vLLM turns a worker's exception into text
            with _closing(tensors):
                return {"refused": error.with_traceback(None)}
        with _closing(tensors):
            digest = weights_digest((name, tensor_digest(tensor)) for name, tensor in held) if checksum else ""
            fetched = time.perf_counter()
            self._forge_write(held)
            self._forge_synchronize()  # the tensors are the transport's again after this
            held.clear()
            if next(tensors, None) is not None:
                raise RunError(f"version {receipt.version} came with more than its {receipt.num_tensors} tensors")
        load_s = time.perf_counter() - fetched
        return {"digest": digest, "fetch_s": fetched - began, "load_s": load_s, "loading": self.forge_loading}

    def forge_close(self) -> None:
        self.forge_transport.close()

    def _forge_check(self, receipt: Receipt, held: list[tuple[str, Any]]) -> None:
        if len(held) != receipt.num_tensors:
            raise RunError(f"version {receipt.version} came with {len(held)} of {receipt.num_tensors} tensors")
        if self.forge_opening.shapes:
            received = ((name, tuple(tensor.shape)) for name, tensor in held)
            check_names(self.forge_opening.shapes, received, tied=self.forge_opening.tied)

    def _forge_write(self, held: list[tuple[str, Any]]) -> None:
        """In place when that was proven to be the same as vLLM's reload; the first update always reloads."""
        if self.forge_plan is not None:
            self.forge_plan.write(dict(held))
            self.model_runner.reset_encoder_cache()
            self.model_runner.reset_mm_cache()
            return
        self._forge_reload(dict(held))
        if not self.forge_loading:
            self.forge_loading = self._forge_make_plan(dict(held)) or "in place"

    def _forge_make_plan(self, held: dict[str, Any]) -> str | None:
        """Plan the next updates; the reason why they cannot be done in place, else None."""
        config = self.model_runner.vllm_config
        if config.model_config.quantization is not None:
            return f"the weights are quantized ({config.model_config.quantization})"
        if config.lora_config is not None or config.model_config.use_mla:
            return "vLLM derives other matrices from the weights (LoRA or MLA)"
        self._forge_synchronize()
        shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
        return self._forge_plan_packing(shapes, held) if self._forge_on_cpu() else self._forge_plan_copies(shapes, held)

    def _forge_plan_copies(self, shapes: Mapping[str, Shape], held: dict[str, Any]) -> str | None:
        """The parameters hold what vLLM's reload wrote; a plan that would write the same is the next updates'."""
        from forge_plugin_vllm.inplace import record

        plan = record(self.model_runner.get_model(), shapes)
        reason = plan.problem() or plan.differs(held)
        if reason is None:
            self.forge_plan = plan
        return reason

    def _forge_plan_packing(self, shapes: Mapping[str, Shape], held: dict[str, Any]) -> str | None:
        """On a CPU: packing the same tensors again has to give matrices that compute the same, bit for bit."""
        from forge_plugin_vllm.packing import record_packed

        plan = record_packed(self.model_runner.get_model(), shapes)
        reason = plan.problem()
        if reason is not None:
            return reason
        expected = plan.outputs()
        plan.write(held)
        if not all(bool((a == b).all()) for a, b in zip(expected, plan.outputs(), strict=True)):
            self._forge_reload(held)
            return "packing the weights directly gives other results than vLLM's reload"
        self.forge_plan = plan
        return None

    def _forge_on_cpu(self) -> bool:
        return bool(self.model_runner.device.type == "cpu")

    def _forge_reload(self, held: Mapping[str, Any]) -> None:
        self.model_runner.reload_weights(weights_iterator=iter(held.items()), is_checkpoint_format=True)
        self._forge_tie_head()

    def _forge_tie_head(self) -> None:
        """Give a tied output embedding the packed matrix of the input embedding.

        vLLM 0.32 packs both for its CPU kernels at start; its reload packs the input embedding's again, which is used
        for nothing, but not the output's, which would silently keep the first weights.
        """
        if not self._forge_on_cpu() or not self.forge_opening.tied:
            return
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        layers = [m for m in self.model_runner.get_model().modules() if isinstance(m, VocabParallelEmbedding)]
        for head in (layer for layer in layers if isinstance(layer, ParallelLMHead)):
            inputs = [m for m in layers if m is not head and m.weight is head.weight and hasattr(m, "cpu_linear")]
            if len(inputs) != 1:
                raise RuntimeError(f"the output embedding is tied to {len(inputs)} input embeddings, expected 1")
            head.cpu_linear = inputs[0].cpu_linear

    def _forge_synchronize(self) -> None:
        import torch

        if self.model_runner.device.type == "cuda":
            torch.cuda.synchronize(self.model_runner.device)


def _closing(tensors: Any) -> AbstractContextManager[Any]:
    """Ends the transport's lease at the end of the block."""
    return closing(tensors) if hasattr(tensors, "close") else nullcontext()
