"""Between this host's sampling parameters and completions, and vLLM's.

completions_of(answer, prompt_ids, decode)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forge_host.api import Completion, RunError, SamplingParams
from forge_plugin_vllm.collect import Answer, Sample

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
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completions_of(
    answer: Answer, prompt_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[Completion]:
    """The completions of a complete answer, in sample order.

    Args:
        decode: gives the text of token ids, for samples whose text vLLM did not decode.

    Raises:
        RunError: vLLM reports an error, or left out a log-probability.
    """
    return [_completion(sample, tuple(prompt_ids), decode) for sample in answer.samples.values()]


def _completion(sample: Sample, prompt_ids: tuple[int, ...], decode: Callable[[Sequence[int]], str]) -> Completion:
    reason = FINISH_REASONS.get(sample.reason)
    if reason is None:
        raise RunError(f"vLLM ended a response with {sample.reason!r}", where="generator")
    token_ids, logprobs = tuple(sample.token_ids), tuple(sample.logprobs)
    if len(logprobs) != len(token_ids):
        raise RunError(
            f"vLLM returned {len(token_ids)} tokens and {len(logprobs)} log-probabilities", where="generator"
        )
    text = sample.text
    if text is None:  # the token that ended it is no part of its text
        text = decode(token_ids[:-1] if reason == "stop" else token_ids)
    return Completion(
        text=text, token_ids=token_ids, logprobs=logprobs, prompt_ids=prompt_ids, policy_versions=sample.versions(),
        finish_reason=reason,
    )  # fmt: skip
