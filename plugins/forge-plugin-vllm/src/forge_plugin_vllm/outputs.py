"""Between this host's sampling parameters and completions, and vLLM's.

completions_of(engine_output, prompt_ids)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forge_host.api import Completion, RunError, SamplingParams

FINISH_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}


def sampling_params(params: SamplingParams) -> Any:
    """vLLM's parameters: token ids and log-probabilities of the sampled tokens only, delivered when all are done.

    Text is decoded token by token only where a stop string has to be found in it; else once, by `completions_of`.
    """
    from vllm import SamplingParams as VLLMParams
    from vllm.sampling_params import RequestOutputKind

    return VLLMParams(
        n=params.n,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop=list(params.stop) or None,
        seed=params.seed,
        ignore_eos=params.ignore_eos,
        detokenize=bool(params.stop),
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completions_of(
    output: Any, prompt_ids: Sequence[int], decode: Callable[[Sequence[int]], str] | None = None
) -> list[Completion]:
    """The completions of one finished `vllm.RequestOutput`, in sample order.

    Args:
        decode: gives the text of token ids; None takes the text that vLLM decoded.

    Raises:
        RunError: vLLM reports an error, or left out a log-probability or a version.
    """
    samples = sorted(output.outputs, key=lambda sample: int(sample.index))
    return [_completion(sample, tuple(prompt_ids), decode) for sample in samples]


def _completion(sample: Any, prompt_ids: tuple[int, ...], decode: Callable[[Sequence[int]], str] | None) -> Completion:
    reason = FINISH_REASONS.get(sample.finish_reason)
    if reason is None:
        raise RunError(f"vLLM ended a response with {sample.finish_reason!r}", where="generator")
    token_ids = tuple(int(token) for token in sample.token_ids)
    versions = tuple(int(s.version) for s in sample.weight_versions or () for _ in range(s.start, s.end))
    logprobs = _sampled_logprobs(sample.logprobs, token_ids)
    if len(versions) != len(token_ids) or len(logprobs) != len(token_ids):
        raise RunError(
            f"vLLM returned {len(token_ids)} tokens, {len(logprobs)} log-probabilities and {len(versions)} versions",
            where="generator",
        )
    text = sample.text
    if decode is not None:  # the token that ended it is no part of its text
        text = decode(token_ids[:-1] if reason == "stop" else token_ids)
    return Completion(
        text=text, token_ids=token_ids, logprobs=logprobs, prompt_ids=prompt_ids, policy_versions=versions,
        finish_reason=reason,
    )  # fmt: skip


def _sampled_logprobs(logprobs: Any, token_ids: tuple[int, ...]) -> tuple[float, ...]:
    """The sampled token's entry of each position; with `logprobs=0` it is the first one there."""
    if logprobs is None:
        return ()
    if hasattr(logprobs, "start_indices"):  # vLLM's FlatLogprobs
        return tuple(float(logprobs.logprobs[start]) for start in logprobs.start_indices)
    return tuple(float(position[token].logprob) for position, token in zip(logprobs, token_ids, strict=True))
