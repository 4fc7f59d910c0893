"""vLLM without this host, as its users run it: what `forge-host bench generate` compares with.

work = load(VLLMConfig(), context)
tokens = work([[1, 2, 3]], SamplingParams(n=8, max_tokens=24))

It has the generator's settings of `arguments.py` and `environment.py` (threads, allocator, block size, eager) and what
`sampled.py` and `norms.py` change is left out: vLLM's own sampler and norms, and no log-probabilities.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from forge_plugin_vllm.arguments import engine_arguments
from forge_plugin_vllm.config import VLLMConfig

#: Of the generator, and no business of vLLM alone.
OURS = ("worker_extension_cls", "logprobs_mode")


def load(config: VLLMConfig, context: Any) -> Callable[[Sequence[Sequence[int]], Any], int]:
    """vLLM's `LLM` with the generator's settings; returns a function that generates and counts tokens."""
    if context.device != "cpu":  # vLLM's own choice there: the engine in a process of its own
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    from vllm import LLM
    from vllm import SamplingParams as VLLMParams

    arguments = engine_arguments(
        config,
        model_path=context.model_path,
        max_model_len=context.config.training.seq_len,
        device=context.device,
        seed=0,
        shared=context.shares_device,
    )
    engine = LLM(**{name: value for name, value in arguments.items() if name not in OURS})

    def work(prompts: Sequence[Sequence[int]], params: Any) -> int:
        given = VLLMParams(
            n=params.n, max_tokens=params.max_tokens, temperature=params.temperature, ignore_eos=params.ignore_eos
        )
        outputs = engine.generate([{"prompt_token_ids": list(p)} for p in prompts], given, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return work
