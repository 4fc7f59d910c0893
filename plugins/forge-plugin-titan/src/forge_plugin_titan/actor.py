"""The trainer's (and reference model's) actor: `TitanEngine` behind Monarch endpoints.

    trainer = await TitanTrainer.options(procs=2).as_actor(TitanConfig(), context)
    loss = (await trainer.train_step.call(inputs, targets))[0]

Every rank is called with all micro-batches of the step and takes its own. The reference model is the same actor in the
role "ref_model": frozen, without an optimizer. All of its work is done in one thread (`ForgeActor.work`), one call
after another, so that health checks are answered during a step.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch.actor import concurrent_endpoint
from torch import Tensor

from forge_host.api import ForgeActor, Receipt
from forge_host.loop.pieces import publish_pieces
from forge_host.runtime.allocator import keep_memory
from forge_plugin_titan.config import TitanConfig

Batches = Sequence[Mapping[str, Any]]


def cpu_environment() -> dict[str, str]:
    """What a process that trains on a CPU is started with; what the user has set himself stays.

    Memory is kept: getting freed memory back took 17% of a step.
    """
    return {name: value for name, value in keep_memory().items() if name not in os.environ}


class TitanTrainer(ForgeActor):
    """Component `titan`. `context` is the run's `forge_host.runtime.context.RoleContext`."""

    def __init__(self, config: TitanConfig, context: Any) -> None:
        self.config, self.context = config, context
        self.settled = False

    @staticmethod
    def environment(config: TitanConfig, context: Any) -> dict[str, str]:
        """Memory settings of the device. Compiled code is kept between runs, unless the user has said where."""
        if context.device == "cpu":
            return cpu_environment()
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(Path.home() / ".cache" / "forge-host" / "inductor")
        return {"TORCHINDUCTOR_CACHE_DIR": cache}

    @concurrent_endpoint
    async def setup(self) -> None:
        """Join the process group, build the model, load its weights, open the transport, rehearse a step.

        The transport is opened on rank 0, and where it takes pieces on every rank.

        Raises:
            PluginError: this host's plugins differ from the run's.
            RunError: memory ran out.
            UsageError: unsupported model, wrong parallel degrees, or no such device.
        """
        await self.work(self._prepare)

    def _prepare(self) -> None:
        from forge_plugin_titan.device import prepare
        from forge_plugin_titan.engine import TitanEngine

        context, run = self.context, self.context.config
        host = context.host()
        device = prepare(context.device, self.config.num_threads)
        trains = context.role == "trainer"
        self.engine = TitanEngine(
            self.config,
            context.model_path,
            run.training,
            run.parallelism if trains else _single(),
            _objective(host, context.plan) if trains else None,
            temperature=context.plan.sampling.temperature,
            device=device,
            run_dir=context.run_dir,
        )
        self.transport: Any = None
        self.pieces = False
        if trains:
            transport, rank = host.build("transport", context.transport), self.engine.rank
            self.pieces = self.engine.world > 1 and transport.capabilities.resharding
            if rank == 0 or self.pieces:
                transport.open(f"{context.namespace}-rank{rank}" if rank else context.namespace)
                self.transport = transport
            self._rehearse()

    def _rehearse(self) -> None:
        """What would make the first step and the first publish slow, where a generator takes longer to start."""
        from forge_plugin_titan.rehearsal import rehearse

        if self.context.plan.offline:
            return
        if not self.pieces:
            self.engine.plan_tensors()
        # A CPU has nothing to compile or to load.
        if self.engine.device.type == "cuda" and not self._shares_memory():
            rehearse(self.engine)
            settle()
            self.settled = True

    def _shares_memory(self) -> bool:
        """Whether the generator takes the GPU's memory between steps: this process must not keep what it can free."""
        return bool(self.context.config.generator.extra.get("sleep_between_steps"))

    @concurrent_endpoint
    async def train_step(self, inputs: Batches, targets: Batches) -> float:
        """One optimizer step; see `TitanEngine.train_step`."""
        return await self.work(self._train_step, inputs, targets)

    def _train_step(self, inputs: Batches, targets: Batches) -> float:
        loss = self.engine.train_step(inputs, targets)
        if not self.settled:
            settle()
            self.settled = True
        return loss

    @concurrent_endpoint
    async def logprobs(self, inputs: Batches, targets: Batches) -> list[Tensor]:
        """Log-probabilities of the responses, float32 [B, T] a micro-batch; see `TitanEngine.logprobs`."""
        return await self.work(self.engine.logprobs, inputs, targets)

    @concurrent_endpoint
    async def reference_logprobs(self, inputs: Batches, targets: Batches) -> list[Tensor]:
        """The same under the weights that training began with; needs adapters (`lora_rank`)."""
        return await self.work(self.engine.logprobs, inputs, targets, adapters=False)

    @concurrent_endpoint
    async def metrics(self) -> dict[str, float]:
        """Of the last step."""
        return await self.work(self.engine.metrics)

    @concurrent_endpoint
    async def publish(self, version: int) -> Receipt | None:
        """Hand the weights to the transport as `version`; the receipts of the ranks that publish, else None.

        Each rank publishes what it holds where the transport takes pieces; otherwise rank 0 does, of gathered tensors.
        """
        return await self.work(self._publish, version)

    def _publish(self, version: int) -> Receipt | None:
        checksums = self.context.config.training.verify_weight_sync
        if self.transport is None:
            for _ in self.engine.named_tensors():  # every rank takes part in gathering each tensor
                pass
            return None
        receipt: Receipt
        if self.pieces:
            receipt = publish_pieces(self.transport, version, self.engine.named_pieces(), checksums=checksums)
            if not receipt.num_tensors:  # another rank holds the same
                return None
        else:
            receipt = self.transport.publish(version, self.engine.named_tensors(), checksums=checksums)
        if self._shares_memory():
            self.engine.free_cached_memory()  # the generator wakes up into this memory
        return receipt

    @concurrent_endpoint
    async def save(self, path: str) -> None:
        """Write this rank's exact training state into a folder."""
        await self.work(self.engine.save, path)

    @concurrent_endpoint
    async def snapshot(self, path: str) -> None:
        """Copy the state that `save` would write, and write it while training goes on."""
        await self.work(self.engine.snapshot, path)

    @concurrent_endpoint
    async def written(self) -> None:
        """Returns when the last snapshot is on disk; RunError if it could not be written."""
        await self.work(self.engine.written)

    @concurrent_endpoint
    async def load(self, path: str) -> None:
        """Go on from `save`d state."""
        await self.work(self.engine.load, path)

    @concurrent_endpoint
    async def save_hf(self, path: str) -> None:
        """Write a folder that transformers and vLLM load."""
        await self.work(self.engine.save_hf, path)


def settle() -> None:
    """Leave what is there after the first step, or its rehearsal, out of garbage collection.

    Importing and compiling leaves very many objects, and going through them stops a step anywhere. For a process that
    only trains.
    """
    gc.collect()
    gc.freeze()


def _objective(host: Any, plan: Any) -> Any:
    from forge_host.rl import Objective

    return Objective(
        host.build("loss", plan.loss.use),
        aggregation=plan.aggregation,
        kl=plan.kl,
        correction=plan.correction,
        entropy_coef=plan.entropy_coef,
        max_tokens=plan.sampling.max_tokens,
        name=f"loss `{plan.loss.ref}`",
    )


def _single() -> Any:
    from forge_host.config.schema import ParallelismConfig

    return ParallelismConfig()
