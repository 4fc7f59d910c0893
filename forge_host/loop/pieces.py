"""Weights published in pieces by several ranks, and read whole or in slices: resharding for any transport.

Why here: a piece travels as an ordinary tensor, so a transport needs to know nothing of meshes. Each rank opens the
transport under a namespace of its own and publishes what it holds; `merge_receipts` makes one receipt of theirs.

    receipt = publish_pieces(transport, 1, [("w", rows[:2], (0, 0), (4, 8))])      # on rank 0 of 2
    receipt = merge_receipts([receipt, receipt_of_rank_1])
    for name, tensor in fetch_tensors(transport, receipt, {"w": (slice(0, 4), slice(0, 4))}):
        ...

A receipt without pieces is fetched as it is, so a reader can always call `fetch_tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import combinations
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.api import Piece, Receipt, Transport
from forge_host.errors import RunError
from forge_host.loop.checksum import tensor_digest

if TYPE_CHECKING:
    import torch

Index = tuple[int, ...]
Slices = tuple[slice, ...]  #: one a dimension, step 1, start and stop given


def publish_pieces(
    transport: Transport,
    version: int,
    pieces: Iterable[tuple[str, torch.Tensor, Index, Index]],
    *,
    checksums: bool = False,
) -> Receipt:
    """Publish this rank's piece of each tensor; replicas of a tensor are published by one rank.

    Args:
        pieces: name, the piece, the index of its first element in the whole tensor, and the whole tensor's shape.

    Raises:
        ValueError: a piece does not fit into its whole, or what `Transport.publish` raises.
    """
    places: dict[str, Piece] = {}

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor, start, shape in pieces:
            piece = Piece(tuple(start), tuple(tensor.shape), tuple(shape))
            if any(i < 0 or i + n > whole for i, n, whole in zip(piece.start, piece.size, piece.shape, strict=True)):
                raise ValueError(f"piece {piece.size} at {start} is not inside tensor {name!r} of shape {shape}")
            places[name] = piece
            yield name, tensor

    receipt = transport.publish(version, tensors(), checksums=checksums)
    return attrs.evolve(receipt, pieces=places)


def merge_receipts(receipts: Sequence[Receipt]) -> Receipt:
    """The receipt of a whole version, of the receipts of its publishers; a single whole one stays as it is.

    `num_tensors` counts whole tensors. Checksums stay with the parts: they are of pieces.

    Raises:
        RunError: no receipt, receipts of different versions, or several of whole weights.
    """
    if len(receipts) == 1 and receipts[0].pieces is None:
        return receipts[0]
    versions = sorted({receipt.version for receipt in receipts})
    if len(versions) != 1:
        raise RunError(f"the trainer's ranks published the versions {versions}, not one")
    if any(receipt.pieces is None for receipt in receipts):
        raise RunError(f"{len(receipts)} ranks of the trainer published, and not all of them pieces")
    return Receipt(
        version=versions[0],
        num_tensors=len({name for receipt in receipts for name in receipt.pieces or ()}),
        num_bytes=sum(receipt.num_bytes for receipt in receipts),
        location={},
        parts=tuple(receipts),
    )


def fetch_tensors(
    transport: Transport, receipt: Receipt, want: Mapping[str, Slices] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole tensors of a receipt, or the wanted slices of them, whatever pieces they were published in.

    A tensor published whole comes as the transport gives it; one made of pieces is put together in memory of its own.
    Tensors are valid until the iterator is exhausted or closed. Pieces are compared with their checksums, if there are.

    Args:
        want: slices by name; a name that is not in it comes whole.

    Raises:
        RunError: pieces are missing, overlap or differ from their checksums; or what `Transport.fetch` raises.
    """
    if not receipt.parts and receipt.pieces is None and not want:
        return transport.fetch(receipt)
    return _assemble(transport, receipt.parts or (receipt,), want or {})


def _assemble(
    transport: Transport, parts: Sequence[Receipt], want: Mapping[str, Slices]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pieces into their places; what is whole already is passed on."""
    import torch

    _check_cover(parts)
    made: dict[str, torch.Tensor] = {}
    with ExitStack() as leases:
        for part in parts:
            tensors: Any = transport.fetch(part)
            if hasattr(tensors, "close"):
                leases.enter_context(closing(tensors))
            for name, tensor in tensors:
                if part.checksums is not None and tensor_digest(tensor) != part.checksums[name]:
                    raise RunError(
                        f"tensor {name!r} of version {part.version} changed on its way",
                        fix="use another transport, and report this with the run's logs",
                    )
                shape = tuple(tensor.shape)
                piece = part.pieces[name] if part.pieces else Piece((0,) * len(shape), shape, shape)
                slices = want.get(name, tuple(slice(0, n) for n in piece.shape))
                if shape == piece.shape:
                    yield name, tensor[slices]
                    continue
                if name not in made:
                    size = [wanted.stop - wanted.start for wanted in slices]
                    made[name] = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
                source, target = _overlap(piece.start, shape, slices)
                made[name][target].copy_(tensor[source])
        yield from made.items()


def _overlap(start: tuple[int, ...], shape: tuple[int, ...], slices: Slices) -> tuple[Slices, Slices]:
    """What a piece and the wanted slices share: its place in the piece, and in the wanted tensor."""
    source, target = [], []
    for first, size, wanted in zip(start, shape, slices, strict=True):
        low = max(first, wanted.start)
        high = max(low, min(first + size, wanted.stop))
        source.append(slice(low - first, high - first))
        target.append(slice(low - wanted.start, high - wanted.start))
    return tuple(source), tuple(target)


def _check_cover(parts: Sequence[Receipt]) -> None:
    """Every tensor's pieces fill it, and no two of them overlap (sizes come from the receipts)."""
    found: dict[str, list[Piece]] = {}
    for part in parts:
        for name, piece in (part.pieces or {}).items():
            found.setdefault(name, []).append(piece)
    for name, pieces in found.items():
        whole = pieces[0].shape
        if any(piece.shape != whole for piece in pieces):
            raise RunError(f"the pieces of tensor {name!r} are of wholes of different shapes")
        if sum(math.prod(piece.size) for piece in pieces) != math.prod(whole) or any(
            _share(a, b) for a, b in combinations(pieces, 2)
        ):
            raise RunError(
                f"the pieces of tensor {name!r} do not fill its shape {whole} once",
                fix="let each rank publish what it holds, and one rank of each group of replicas",
            )


def _share(a: Piece, b: Piece) -> bool:
    return all(
        max(x, y) < min(x + n, y + m) for x, n, y, m in zip(a.start, a.size, b.start, b.size, strict=True)
    )
