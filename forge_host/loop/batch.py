"""Scored groups to the trainer's packed micro-batches; no padding token goes through the model.

`make_batches(rows, num_bins)` gives `inputs` and `targets`, one dict a data-parallel rank and micro-batch (rank r of D
takes r, r + D, ...). In each: row b holds `prompt_lengths[b] + lengths[b]` consecutive tokens of the packed sequence;
response tensors are [B, T], padded on the right, True in `padding_mask` where a token counts (which may leave gaps).

    inputs[i]:  tokens, positions, sequence_ids                        int64 [1, L]
    targets[i]: response int64 [B, T]; padding_mask bool [B, T]; generator_logprobs, advantages,
                ref_logprobs float32 [B, T]; prompt_lengths, lengths, group_ids int64 [B]; rewards float32 [B]
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from forge_host.errors import UsageError
from forge_host.types import Completion, Episode, Group


@attrs.define(eq=False)
class Row:
    """One response to train on.

    `advantage` is a number or [T]. `counts` False keeps the whole row out of the loss, a False in `mask` [T] that
    token (another speaker's turn). `sampled` False: the tokens are the dataset's, so their log-probabilities under the
    policy that wrote them are unknown and the ones in `completion` mean nothing.
    """

    completion: Completion
    group_id: int
    reward: float
    advantage: torch.Tensor | float = 0.0
    ref_logprobs: torch.Tensor | None = None
    counts: bool = True
    mask: Sequence[bool] | None = None
    sampled: bool = True

    @property
    def num_tokens(self) -> int:
        return len(self.completion.prompt_ids) + len(self.completion.token_ids)


def rows_of(groups: Sequence[Group], *, mask_truncated: bool = False) -> list[Row]:
    """The trainable episodes: graded and not empty. `mask_truncated` keeps cut-off ones out of the loss."""
    return [
        Row(
            completion=episode.completion,
            group_id=index,
            reward=float(episode.reward),
            counts=not (mask_truncated and episode.completion.finish_reason == "length"),
            mask=episode.completion.mask or None,
        )
        for index, group in enumerate(groups)
        for episode in group.episodes
        if episode.reward is not None and why_untrainable(episode) is None
    ]


def why_untrainable(episode: Episode) -> str | None:
    """The reason why an episode of a kept group is left out of training, None when it is trained on."""
    if episode.reward is None:
        return episode.error or "no reward could grade it"
    return None if episode.completion.num_sampled > 0 else "the response is empty"


def num_bins(rows: Sequence[Row], *, data_parallel: int, accumulation: int, micro_batch_tokens: int) -> int:
    """Micro-batches over all ranks: a multiple of `data_parallel`, each at most `micro_batch_tokens` long if it can be.

    Raises:
        UsageError: fewer rows than micro-batches, so some rank would have nothing to do.
    """
    total = sum(row.num_tokens for row in rows)
    per_rank = max(accumulation, math.ceil(total / (data_parallel * micro_batch_tokens)))
    bins = data_parallel * per_rank
    if len(rows) < bins:
        raise UsageError(
            f"{len(rows)} responses cannot fill {bins} micro-batches "
            f"({data_parallel} data-parallel ranks x {per_rank} micro-batches)",
            fix="lower training.gradient_accumulation_steps or raise training.batch_size",
        )
    return bins


def balance(rows: Sequence[Row], bins: int) -> list[list[Row]]:
    """Rows to micro-batches of about equal length. A group stays together where it can: its prompt is computed once.

    Heaviest group first into the bin with the fewest tokens, then single rows from the heaviest bin to the lightest
    until they are within 2% of each other; deterministic, and every bin gets at least one row.
    """
    units: dict[int, list[Row]] = {}
    for row in rows:
        units.setdefault(row.group_id, []).append(row)
    parts = list(units.values())
    while len(parts) < bins or _heaviest(parts) > 1.5 * _mean_load(rows, bins):
        part = max((p for p in parts if len(p) > 1), key=_tokens, default=None)
        if part is None:
            break
        parts.remove(part)
        parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    loads = [0] * bins
    filled: list[list[Row]] = [[] for _ in range(bins)]
    for part in sorted(parts, key=lambda p: -_tokens(p)):
        index = loads.index(min(loads))
        filled[index] += part
        loads[index] += _tokens(part)
    _level(filled, loads)
    return filled


def _level(filled: list[list[Row]], loads: list[int]) -> None:
    """Move rows from the heaviest bin to the lightest while that brings the two nearer and they are 2% apart."""
    for _ in range(sum(len(part) for part in filled)):
        heavy, light = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[heavy] - loads[light]
        if gap * len(loads) <= 0.02 * sum(loads) or len(filled[heavy]) == 1:
            return
        # Of the rows that fit, one whose group is in the lightest bin already copies no prompt.
        there = {row.group_id for row in filled[light]}
        row = min(filled[heavy], key=lambda r: (abs(r.num_tokens - gap / 2), r.group_id not in there))
        if row.num_tokens >= gap:
            return
        filled[heavy].remove(row)
        filled[light].append(row)
        loads[heavy] -= row.num_tokens
        loads[light] += row.num_tokens


def _tokens(rows: Sequence[Row]) -> int:
    return sum(row.num_tokens for row in rows)


def _heaviest(parts: Sequence[Sequence[Row]]) -> int:
    return max((_tokens(p) for p in parts if len(p) > 1), default=0)


def _mean_load(rows: Sequence[Row], bins: int) -> float:
    return _tokens(rows) / bins


def make_batches(rows: Sequence[Row], bins: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Pack the rows into `bins` micro-batches. See the module for the fields."""
    packed = [(pack(part), targets(part)) for part in balance(rows, bins)]
    return [p[0] for p in packed], [p[1] for p in packed]


def pack(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Concatenate the rows' prompts and responses; positions restart at 0 in every row."""
    tokens = array("q")
    for row in rows:
        tokens.extend(row.completion.prompt_ids)
        tokens.extend(row.completion.token_ids)
    lengths = torch.tensor([row.num_tokens for row in rows])
    starts = torch.cumsum(lengths, 0) - lengths
    return {
        "tokens": _tensor(tokens, torch.int64)[None],
        "positions": (torch.arange(len(tokens)) - torch.repeat_interleave(starts, lengths))[None],
        "sequence_ids": torch.repeat_interleave(torch.arange(len(rows)), lengths)[None],
    }


def targets(rows: Sequence[Row]) -> dict[str, torch.Tensor | None]:
    """The response-aligned tensors of some rows, padded to the longest response."""
    lengths = torch.tensor([len(row.completion.token_ids) for row in rows])
    width = int(lengths.max())
    valid = torch.arange(width) < lengths[:, None]
    mask = own_tokens(rows, width) & torch.tensor([row.counts for row in rows])[:, None]
    refs = [row.ref_logprobs for row in rows if row.ref_logprobs is not None]
    sampled = all(row.sampled for row in rows)
    return {
        "response": _pad(_flat("q", [row.completion.token_ids for row in rows]), valid),
        "padding_mask": mask,
        "generator_logprobs": _pad(_flat("f", [row.completion.logprobs for row in rows]), valid) if sampled else None,
        "advantages": _advantages(rows, valid),
        "ref_logprobs": _pad(torch.cat(refs).float(), valid) if len(refs) == len(rows) else None,
        "prompt_lengths": torch.tensor([len(row.completion.prompt_ids) for row in rows]),
        "lengths": lengths,
        "group_ids": torch.tensor([row.group_id for row in rows]),
        "rewards": torch.tensor([row.reward for row in rows], dtype=torch.float32),
    }


def own_tokens(rows: Sequence[Row], width: int) -> torch.Tensor:
    """True at the rows' tokens, those of other speakers left out. [N, width] bool"""
    lengths = torch.tensor([len(row.completion.token_ids) for row in rows])
    mask = torch.arange(width) < lengths[:, None]
    for index, row in enumerate(rows):
        if row.mask is not None:
            mask[index, : len(row.mask)] &= torch.tensor(row.mask)
    return mask


def _advantages(rows: Sequence[Row], valid: torch.Tensor) -> torch.Tensor:
    """[B, T] float32, 0 in padding."""
    if all(_is_number(row.advantage) for row in rows):
        return torch.where(valid, torch.tensor([float(row.advantage) for row in rows])[:, None], 0.0)
    spread = []
    for row in rows:
        value, num_tokens = torch.as_tensor(row.advantage, dtype=torch.float32), len(row.completion.token_ids)
        spread.append(value.expand(num_tokens) if value.dim() == 0 else value[:num_tokens])
    return _pad(torch.cat(spread), valid)


def _is_number(value: torch.Tensor | float) -> bool:
    return not isinstance(value, torch.Tensor) or value.dim() == 0


#: One conversion of all rows' numbers: a tensor a row costs more than the host's whole share of a step.
_DTYPES = {"q": torch.int64, "f": torch.float32}


def _flat(code: str, rows: Sequence[Sequence[Any]]) -> torch.Tensor:
    numbers = array(code)
    for row in rows:
        numbers.extend(row)
    return _tensor(numbers, _DTYPES[code])


def _tensor(numbers: array[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(numbers, dtype=dtype) if len(numbers) else torch.empty(0, dtype=dtype)


def _pad(flat: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """The rows' values after each other to [B, T], 0 in padding."""
    return torch.zeros(valid.shape, dtype=flat.dtype).masked_scatter_(valid, flat)


def unpad(tensor: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    """[B, T] back to one [length] tensor a row."""
    return [row[:n].clone() for row, n in zip(tensor, lengths.tolist(), strict=True)]
