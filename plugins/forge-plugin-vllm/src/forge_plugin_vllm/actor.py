"""The generator's actor: one process, one vLLM engine, many calls at once.

    generator = await VLLMGenerator.options(with_gpus=False).as_service(VLLMConfig(), context)
    completions = await generator.generate.route(prompt_ids, SamplingParams(n=8))

`services.generator.procs` counts the devices that split the model; vLLM starts its own workers for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from monarch.actor import concurrent_endpoint, endpoint

from forge_host.api import Completion, ForgeActor, Receipt, SamplingParams
from forge_plugin_vllm.config import VLLMConfig
from forge_plugin_vllm.environment import environment


class VLLMGenerator(ForgeActor):
    """Component `vllm`. `context` is the run's `forge_host.runtime.context.RoleContext`."""

    single_process: ClassVar[bool] = True
    alone: ClassVar[str] = "forge_plugin_vllm.alone:load"  #: the engine without this host, for benchmarks

    def __init__(self, config: VLLMConfig, context: Any) -> None:
        self.config, self.context = config, context
        self.engine: Any = None

    @staticmethod
    def environment(config: VLLMConfig, context: Any) -> dict[str, str]:
        """See `forge_plugin_vllm.environment`."""
        return environment(config, context)

    @endpoint
    async def setup(self) -> None:
        """Check vLLM's version, load the model, and open the transport where the weights will be loaded.

        Raises:
            PluginError: vLLM is missing or of an untested version.
            UsageError: not enough memory for the KV cache, or a setting that vLLM refuses.
        """
        from forge_plugin_vllm.arguments import engine_arguments
        from forge_plugin_vllm.checkpoint import expected_shapes, ties_embeddings
        from forge_plugin_vllm.engine import VLLMEngine
        from forge_plugin_vllm.startup import check_version, installed_version
        from forge_plugin_vllm.worker import Opening

        config, context = self.config, self.context
        check_version(installed_version(), allow_untested=config.allow_untested_version)
        arguments = engine_arguments(
            config,
            model_path=context.model_path,
            max_model_len=context.config.training.seq_len,
            device=context.device,
            seed=context.config.training.seed if config.seed is None else config.seed,
            procs=context.procs,
            shared=context.shares_device,
            sequences=None if context.plan is None else _sequences(context),
        )
        opening = Opening(
            lock=context.lock,
            transport=context.transport,
            namespace=context.namespace,
            shapes=expected_shapes(context.model_path),
            tied=ties_embeddings(context.model_path),
        )
        self.engine = VLLMEngine(arguments, opening=opening, recompute_in_flight=config.recompute_in_flight)
        await self.engine.start()

    @concurrent_endpoint
    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Completion]:
        """`params.n` completions of one prompt; see `VLLMEngine.generate`."""
        completions: list[Completion] = await self.engine.generate(prompt_ids, params)
        return completions

    @concurrent_endpoint
    async def generate_many(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> list[list[Completion]]:
        """Completions of several prompts as one batch; see `VLLMEngine.generate_many`."""
        answers: list[list[Completion]] = await self.engine.generate_many(prompts, params)
        return answers

    @concurrent_endpoint
    async def update_weights(self, receipt: Receipt, checksum: bool = False) -> str:
        """Load a newer version in place, requests going on; see `VLLMEngine.update_weights`."""
        return str(await self.engine.update_weights(receipt, checksum))

    @endpoint
    async def sleep(self) -> None:
        """See `VLLMEngine.sleep`."""
        await self.engine.sleep()

    @endpoint
    async def wake(self) -> None:
        """See `VLLMEngine.wake`."""
        await self.engine.wake()

    @concurrent_endpoint
    async def metrics(self) -> dict[str, float]:
        """See `VLLMEngine.metrics`."""
        return dict(self.engine.metrics())

    @endpoint
    async def release(self) -> None:
        """Free the model; the process stays. (Monarch's meshes have a `stop` of their own.)"""
        if self.engine is not None:
            await self.engine.stop()


def _sequences(context: Any) -> int:
    """Responses that the loop keeps in flight at most."""
    training = context.config.training
    return int(training.batch_size * context.plan.sampling.n * (1 + training.max_policy_age))
