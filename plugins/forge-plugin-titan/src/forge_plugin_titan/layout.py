"""From packed rows to the token stream that goes through the model, prompts that rows share computed once.

A micro-batch holds rows (prompt + response, one after another). In the stream each different prompt stands once,
followed by the responses that continue it; a response's last token is left out, nothing is predicted from it. A token
attends to its own segment up to itself, and a response also to its whole prompt: what a causal mask over every single
row gives, so gradients are the same, with fewer tokens.

Under context parallelism every process keeps an equal run of the stream's tokens and the pieces of segments in it;
their attention sees the keys and values of the whole stream.

    layout = build_layout(inputs[0], targets[0])
    layout.tokens, layout.positions     # int64 [1, L]
    layout.pick                         # int64 [N]: where in the stream each response token is predicted from
    second = build_layout(inputs[0], targets[0], part=(1, 2))       # what the second of two processes has of it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from forge_host.errors import RunError, UsageError


@attrs.frozen
class Segment:
    """Stream tokens [start, start + length) that attend causally to themselves and to all of [prefix, prefix_end).

    Also to all of the `head` tokens before them: those of a segment whose first part another process has.
    """

    start: int
    length: int
    prefix: int = 0
    prefix_end: int = 0
    head: int = 0

    @property
    def ahead(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The two ranges of stream tokens, either may be empty, that all of its own see."""
        return (self.prefix, self.prefix_end), (self.start - self.head, self.start)

    @property
    def num_ahead(self) -> int:
        return self.prefix_end - self.prefix + self.head


@attrs.frozen(eq=False, kw_only=True)
class Layout:
    """One micro-batch as the model sees it, or a process's part of it.

    Args:
        tokens, positions: int64 [1, L].
        segments: cover the tokens in order, filling tokens included; their numbers count from the stream's start.
        pick: int64 [N], which hidden state of the L predicts response token n (rows in order, tokens in order).
        ids: int64 [N], the response tokens.
        row, column: int64 [N], place of each response token in [B, T].
        shape: (B, T).
        length: tokens of the whole stream, filling tokens included.
        num_tokens: without them.
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
    length: int
    num_tokens: int
    row_tokens: int

    def to(self, device: torch.device | str) -> Layout:
        names = ("tokens", "positions", "pick", "ids", "row", "column")
        moved: dict[str, Any] = {name: send(getattr(self, name), device) for name in names}
        return attrs.evolve(self, **moved)

    def part(self, index: int, number: int) -> Layout:
        """Tokens of the `index`-th of `number` processes; `number` divides `length`."""
        if number == 1:
            return self
        size = self.length // number
        begin = index * size
        mine = (self.pick >= begin) & (self.pick < begin + size)
        names = ("ids", "row", "column")
        return attrs.evolve(
            self, tokens=self.tokens[:, begin : begin + size], positions=self.positions[:, begin : begin + size],
            segments=cut(self.segments, begin, begin + size), pick=self.pick[mine] - begin,
            **{name: getattr(self, name)[mine] for name in names},
        )  # fmt: skip

    def to_rows(self, values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """[N] per response token to [B, T] with 0 in the padding; differentiable.

        Args:
            group: processes with the other parts, whose values it then has too. They are constants here: each process
                goes on to the same loss and sends back its own share of the gradient, and the shares are added up.
        """
        rows = values.new_zeros(self.shape)
        if group is not None:
            rows.index_put_((self.row, self.column), values.detach())
            dist.all_reduce(rows, group=group)
        return rows.index_put((self.row, self.column), values)


def cut(segments: Sequence[Segment], begin: int, end: int) -> tuple[Segment, ...]:
    """The pieces of segments that lie in stream tokens [begin, end)."""
    found = []
    for s in segments:
        start, stop = max(s.start, begin), min(s.start + s.length, end)
        if start < stop:
            found.append(attrs.evolve(s, start=start, length=stop - start, head=s.head + start - s.start))
    return tuple(found)


def build_layout(
    inputs: Mapping[str, Any],
    targets: Mapping[str, Any],
    *,
    share_prompts: bool = True,
    multiple: int = 1,
    max_length: int | None = None,
    vocab_size: int | None = None,
    part: tuple[int, int] = (0, 1),
    device: torch.device | str = "cpu",
) -> Layout:
    """Read one micro-batch (see `forge_host.loop.batch`), check it, and lay it out on `device`.

    Args:
        multiple: fill the stream, of each part, up to a multiple of this many tokens.
        max_length: longest prompt + response that the model was built for.
        part: which part of how many.

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
    stream = inputs["tokens"].reshape(-1).cpu()
    prompt_lengths, lengths = targets["prompt_lengths"].tolist(), targets["lengths"].tolist()
    _check(inputs, targets, stream, prompt_lengths, lengths, max_length, vocab_size)

    groups: dict[Any, list[int]] = {}  # rows that continue one prompt
    begins, begin = [], 0
    for row, (p, n) in enumerate(zip(prompt_lengths, lengths, strict=True)):
        key = stream[begin : begin + p].numpy().tobytes() if share_prompts else row
        groups.setdefault(key, []).append(row)
        begins.append(begin)
        begin += p + n

    parts: list[tuple[int, int, int]] = []  # pieces of the packed rows, as (begin, length, position of its first token)
    segments: list[Segment] = []
    starts: list[int] = [0] * len(lengths)  # where in the stream a row's response begins, and its prompt's end
    ends: list[int] = [0] * len(lengths)
    length = 0
    for rows in groups.values():
        p, start = prompt_lengths[rows[0]], length
        if not share_prompts:  # one segment a row: plain causal attention over prompt and response
            n = p + lengths[rows[0]] - 1
            parts.append((begins[rows[0]], n, 0))
            segments.append(Segment(start, n))
            starts[rows[0]], ends[rows[0]] = start + p, start + p
            length += n
            continue
        parts.append((begins[rows[0]], p, 0))
        segments.append(Segment(start, p))
        length += p
        for row in rows:
            n = lengths[row] - 1
            starts[row], ends[row] = length, start + p
            if n:
                parts.append((begins[row] + p, n, p))
                segments.append(Segment(length, n, start, start + p))
            length += n
    num_tokens = length
    filling = -num_tokens % (multiple * part[1])
    if filling:
        segments.append(Segment(num_tokens, filling))

    sizes = torch.tensor([n for _, n, _ in parts])
    within = _counted(sizes)
    take = within + torch.repeat_interleave(torch.tensor([b for b, _, _ in parts]), sizes)
    positions = within + torch.repeat_interleave(torch.tensor([at for _, _, at in parts]), sizes)
    fill = torch.arange(filling) % (max_length or max(1, filling))
    counts = torch.tensor(lengths)
    row_of = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    column = _counted(counts)
    # A response's first token is predicted by its prompt's last, the others by the one before them.
    before = torch.tensor(starts)[row_of] + column - 1
    response = targets["response"].cpu()
    return Layout(
        tokens=torch.cat([stream[take], torch.zeros_like(fill)])[None],
        positions=torch.cat([positions, fill])[None],
        segments=tuple(segments),
        pick=torch.where(column == 0, torch.tensor(ends)[row_of] - 1, before),
        ids=response[row_of, column],
        row=row_of,
        column=column,
        shape=(len(lengths), int(response.shape[1])),
        length=num_tokens + filling,
        num_tokens=num_tokens,
        row_tokens=len(stream),
    ).part(*part).to(device)  # fmt: skip


def _counted(sizes: Tensor) -> Tensor:
    """0, 1, ... up to each size, one after another."""
    return torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on `device`. To a GPU through pinned memory: the host does not wait for the work queued there."""
    device = torch.device(device)
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _check(
    inputs: Mapping[str, Any],
    targets: Mapping[str, Any],
    stream: Tensor,
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
    if vocab_size is not None and not 0 <= int(stream.min()) <= int(stream.max()) < vocab_size:
        wrong = int(stream.max()) if int(stream.max()) >= vocab_size else int(stream.min())
        raise UsageError(
            f"token id {wrong} is outside the model's vocabulary of {vocab_size}",
            fix="use the tokenizer that came with the model",
        )
    # Every response as it stands in the stream against the padded tensor of the losses.
    of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    column = _counted(torch.tensor(lengths))
    begins = torch.tensor(totals).cumsum(0) - torch.tensor(lengths)
    differs = of[stream[begins[of] + column] != targets["response"].cpu()[of, column]]
    if len(differs):
        raise RunError(f"row {int(differs[0])}: `response` differs from the response tokens in `tokens`")
