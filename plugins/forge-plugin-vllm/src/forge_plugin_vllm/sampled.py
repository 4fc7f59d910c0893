"""Sampling as this host needs it: a token and its own log-probability; on a CPU both come from one softmax.

    install(model_runner.sampler, on_cpu=True)
    install_on_gpu()

vLLM ranks the sampled token among the whole vocabulary and sorts out the best 0 others, two more passes over the
logits. Its CPU kernel then draws by adding noise to every logit (two logarithms each): for 32 sequences and 49,152
tokens 24 ms on one core, beside 1.2 ms for the log-softmax. Drawing by the cumulative probabilities takes one random
number a row and 1.5 ms.

vLLM's runner for GPUs reads the logits in pieces of 1,024, each with a reduction among all threads of its program, and
ranks the token too: 0.26 ms for 256 rows of 151,936 bfloat16 logits on an H200, beside 0.05 for its kernel with larger
pieces and no ranks, for which nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

BLOCK = 128  #: probabilities that are summed before the place of a draw is searched
BELOW_ONE = 1.0 - 1e-12  #: a draw must stay below the sum that it is a part of
PIECE, WARPS = 8192, 16  #: logits that a program of the GPU kernel reads at once, and its warps


def install(sampler: Any, *, on_cpu: bool) -> None:
    """Put both into vLLM's `Sampler`; what this host does not ask for goes vLLM's way."""
    sampler.gather_logprobs = sampled_only(sampler.gather_logprobs)
    drawing = sampler.topk_topp_sampler
    if on_cpu and sampler.logprobs_mode == "processed_logprobs" and not sampler.use_fp64_gumbel:
        drawing.forward = from_logprobs(drawing.forward)


def sampled_only(gather: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's `Sampler.gather_logprobs`, with rank 0 for every token where no others are asked for."""

    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
        from vllm.v1.outputs import LogprobsTensors

        if num_logprobs:
            return gather(logprobs, num_logprobs, token_ids)
        index = token_ids.unsqueeze(-1)
        return LogprobsTensors(index.to(torch.int32), logprobs.gather(-1, index), torch.zeros_like(token_ids))

    return gather_logprobs


def install_on_gpu() -> None:
    """Put `scores_of_sampled` into vLLM's runner for GPUs, for every model of this process."""
    from vllm.v1.worker.gpu.sample import sampler

    sampler.compute_topk_scores = scores_of_sampled(sampler.compute_topk_scores)


def scores_of_sampled(compute: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's `compute_topk_scores` for GPUs, with rank 0 for every token where no others are asked for."""

    def compute_scores(
        logits: Tensor, num_logprobs: int, token_ids: Tensor, starts: Any = None, *, max_per_req_token_ids: int = 0,
        logits_mode: bool = False, **others: Any,
    ) -> Any:  # fmt: skip
        if num_logprobs or max_per_req_token_ids or logits_mode or isinstance(starts, Tensor):
            return compute(
                logits, num_logprobs, token_ids, starts, max_per_req_token_ids=max_per_req_token_ids,
                logits_mode=logits_mode, **others,
            )  # fmt: skip
        from vllm.v1.outputs import LogprobsTensors

        return LogprobsTensors(
            token_ids.unsqueeze(-1), logprobs_of(logits, token_ids), torch.zeros_like(token_ids), starts
        )

    return compute_scores


def logprobs_of(logits: Tensor, token_ids: Tensor) -> Tensor:
    """float32 [N, 1] of logits [N, V] on a GPU and int64 [N], by vLLM's kernel, which keeps no other."""
    from vllm.v1.worker.gpu.sample.logprob import _topk_log_softmax_kernel as kernel

    found = logits.new_empty((len(logits), 1), dtype=torch.float32)
    kernel[(len(logits),)](
        found, logits, logits.stride(0), token_ids, token_ids.stride(0), 1, logits.shape[-1],
        BLOCK_SIZE=PIECE, TOPK_BLOCK_SIZE=1, num_warps=WARPS,
    )  # fmt: skip
    return found


def from_logprobs(forward: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's `TopKTopPSampler.forward` for `processed_logprobs`, drawing without noise where nothing is filtered."""

    def drawn(
        logits: Tensor, generators: Mapping[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if k is not None or p is not None:
            result: tuple[Tensor, Tensor | None] = forward(logits, generators, k, p)
            return result
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        return draw(logprobs.exp(), uniform(len(logits), generators)), logprobs

    return drawn


def uniform(rows: int, generators: Mapping[int, torch.Generator]) -> Tensor:
    """A number in [0, 1) for each row, float64 [rows]; from the row's own generator where it has one."""
    numbers = torch.rand(rows, dtype=torch.float64)
    for row, generator in generators.items():
        numbers[row] = torch.rand(1, dtype=torch.float64, generator=generator)[0]
    return numbers


def draw(probs: Tensor, numbers: Tensor) -> Tensor:
    """The token of each row at which the cumulative probability passes the row's number; int64 [N].

    Args:
        probs: float32 [N, V], at least 0; need not sum to 1 exactly.
        numbers: float64 [N], in [0, 1).

    A token of probability 0 is never drawn. First the block of `BLOCK` tokens is found, then the place inside it, in
    float64, so that a rounded sum over a large vocabulary favours nobody.
    """
    if rest := -probs.shape[-1] % BLOCK:
        probs = torch.nn.functional.pad(probs, (0, rest))
    blocks = probs.unflatten(-1, (-1, BLOCK))
    block, share = _place(blocks.sum(-1), numbers)
    chosen = blocks[torch.arange(len(blocks)), block]
    return block * BLOCK + _place(chosen, share)[0]


def _place(weights: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Where the cumulative weights [N, M] pass `numbers` of their sum, and how far into that entry, in [0, 1)."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    wanted = (numbers.clamp(max=BELOW_ONE) * sums[:, -1]).unsqueeze(-1)
    place = torch.searchsorted(sums, wanted, right=True).clamp_(max=weights.shape[-1] - 1)  # NaN finds no place
    own = weights.gather(-1, place).double()
    into = (wanted - (sums.gather(-1, place) - own)) / own
    return place.squeeze(-1), into.squeeze(-1).clamp(0.0, BELOW_ONE)
