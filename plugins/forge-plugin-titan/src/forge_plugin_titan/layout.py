"""From packed rows to the token stream that goes through the model, prompts that rows share computed once.

A micro-batch holds rows (prompt + response, one after another). In the stream each different prompt stands once,
followed by the responses that continue it; a response's last token is left out, nothing is predicted from it. A token
attends to its own segment up to itself, and a response also to its whole prompt: what a causal mask over every single
row gives, so gradients are the same, with fewer tokens.

    layout = build_layout(inputs[0], targets[0])
    layout.tokens, layout.positions     # int64 [1, L]
    layout.pick                         # int64 [N]: where in the stream each response token is predicted from
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from forge_host.errors import RunError, UsageError


@attrs.frozen
class Segment:
    """Stream tokens [start, start + length) that attend causally to themselves and to all of [prefix, prefix_end)."""

    start: int
    length: int
    prefix: int = 0
    prefix_end: int = 0

    @property
    def prefix_length(self) -> int:
        return self.prefix_end - self.prefix


@attrs.frozen(eq=False, kw_only=True)
class Layout:
    """One micro-batch as the model sees it.

    Args:
        tokens, positions: int64 [1, L].
        segments: cover the stream in order, filling tokens included.
        pick: int64 [N], stream index whose hidden state predicts response token n (rows in order, tokens in order).
        ids: int64 [N], the response tokens.
        row, column: int64 [N], place of each response token in [B, T].
        shape: (B, T).
        num_tokens: L without filling tokens.
        row_tokens: tokens of the packed rows, shared prompts counted every time.
    """

    tokens: Tensor
    positions: Tensor
    segments: tuple[Segment, ...]
    pick: Tensor
    ids: Tensor
    row: Tensor
    column: Tensor
    shape: tuple[int, int]
    num_tokens: int
    row_tokens: int

    def to_rows(self, values: Tensor) -> Tensor:
        """[N] per response token to [B, T] with 0 in the padding; differentiable."""
        return values.new_zeros(self.shape).index_put((self.row, self.column), values)


def build_layout(
    inputs: Mapping[str, Any],
    targets: Mapping[str, Any],
    *,
    share_prompts: bool = True,
    multiple: int = 1,
    max_length: int | None = None,
    vocab_size: int | None = None,
    device: torch.device | str = "cpu",
) -> Layout:
    """Read one micro-batch (see `forge_host.loop.batch`), check it, and lay it out on `device`.

    Args:
        multiple: fill the stream up to a multiple of this many tokens.
        max_length: longest prompt + response that the model was built for.

    Raises:
        UsageError: a row is longer than `max_length`.
        RunError: the fields do not fit together.
    """
    missing = [name for name in ("tokens", "positions", "sequence_ids") if name not in inputs]
    if missing:
        raise RunError(
            f"the trainer got inputs without {' and '.join(missing)}",
            fix="pack rows with forge_host.loop.batch.make_batches",
        )
    stream = inputs["tokens"].reshape(-1).tolist()
    prompt_lengths, lengths = targets["prompt_lengths"].tolist(), targets["lengths"].tolist()
    _check(inputs, targets, stream, prompt_lengths, lengths, max_length, vocab_size)

    groups: dict[Any, list[tuple[int, int]]] = {}
    prompts: dict[Any, list[int]] = {}
    begin = 0
    for row, (p, n) in enumerate(zip(prompt_lengths, lengths, strict=True)):
        prompt = stream[begin : begin + p]
        key = tuple(prompt) if share_prompts else row
        prompts.setdefault(key, prompt)
        groups.setdefault(key, []).append((row, begin + p))
        begin += p + n

    tokens: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    pick: list[list[int]] = [[] for _ in lengths]
    for key, members in groups.items():
        prompt, start = prompts[key], len(tokens)
        tokens += prompt
        positions += range(len(prompt))
        end = len(tokens)
        if not share_prompts:  # one segment a row: plain causal attention over prompt and response
            row, at = members[0]
            n = lengths[row] - 1
            tokens += stream[at : at + n]
            positions += range(len(prompt), len(prompt) + n)
            segments.append(Segment(start, len(tokens) - start))
            pick[row] = list(range(end - 1, end + n))
            continue
        segments.append(Segment(start, len(prompt)))
        for row, at in members:
            n, here = lengths[row] - 1, len(tokens)
            tokens += stream[at : at + n]
            positions += range(len(prompt), len(prompt) + n)
            if n:
                segments.append(Segment(here, n, start, end))
            pick[row] = [end - 1, *range(here, here + n)]
    num_tokens = len(tokens)
    filling = -num_tokens % multiple
    if filling:
        segments.append(Segment(num_tokens, filling))
        tokens += [0] * filling
        positions += [i % (max_length or filling) for i in range(filling)]

    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    columns = torch.cat([torch.arange(n) for n in lengths])
    response = targets["response"]
    return Layout(
        tokens=torch.tensor([tokens], device=device),
        positions=torch.tensor([positions], device=device),
        segments=tuple(segments),
        pick=torch.tensor([i for part in pick for i in part], device=device),
        ids=response[rows.to(response.device), columns.to(response.device)].to(device),
        row=rows.to(device),
        column=columns.to(device),
        shape=(len(lengths), int(response.shape[1])),
        num_tokens=num_tokens,
        row_tokens=len(stream),
    )


def _check(
    inputs: Mapping[str, Any],
    targets: Mapping[str, Any],
    stream: list[int],
    prompt_lengths: list[int],
    lengths: list[int],
    max_length: int | None,
    vocab_size: int | None,
) -> None:
    totals = [p + n for p, n in zip(prompt_lengths, lengths, strict=True)]
    if min(prompt_lengths, default=0) < 1 or min(lengths, default=0) < 1:
        raise RunError("a row of the micro-batch has an empty prompt or an empty response")
    ids = inputs["sequence_ids"].reshape(-1)
    expected = torch.repeat_interleave(torch.arange(len(totals)), torch.tensor(totals))
    if sum(totals) != len(stream) or not torch.equal(ids.cpu(), expected):
        raise RunError(
            f"prompt_lengths and lengths add up to {sum(totals)} tokens in {len(totals)} rows, "
            f"which is not how the {len(stream)} packed tokens are divided by sequence_ids"
        )
    if max_length is not None and max(totals) > max_length:
        raise UsageError(
            f"a prompt with its response has {max(totals)} tokens, training.seq_len is {max_length}",
            fix=f"set training.seq_len to at least {max(totals)}, or lower max_tokens or dataset.max_prompt_tokens",
        )
    if vocab_size is not None and max(stream) >= vocab_size:
        raise UsageError(
            f"token id {max(stream)} is outside the model's vocabulary of {vocab_size}",
            fix="use the tokenizer that came with the model",
        )
    response = targets["response"]
    begin = 0
    for row, (p, n) in enumerate(zip(prompt_lengths, lengths, strict=True)):
        if stream[begin + p : begin + p + n] != response[row, :n].tolist():
            raise RunError(f"row {row}: `response` differs from the response tokens in `tokens`")
        begin += p + n
