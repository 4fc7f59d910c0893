"""Weights published in pieces come whole or in slices, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import attrs
import pytest
import torch

from forge_host.api import Receipt, Transport
from forge_host.builtin.transports.shm import SharedMemory
from forge_host.errors import RunError
from forge_host.loop.pieces import fetch_tensors, merge_receipts, publish_pieces

WHOLE = torch.arange(30.0).reshape(5, 6)


@pytest.fixture
def transport() -> Iterator[Transport]:
    with closing(SharedMemory()) as shm:
        yield shm


def published(transports: list[Transport], rows: list[slice], *, checksums: bool = False) -> list[Receipt]:
    return [
        publish_pieces(one, 1, [("w", WHOLE[part], (part.start, 0), (5, 6))], checksums=checksums)
        for one, part in zip(transports, rows, strict=True)
    ]


def test_rows_of_two_ranks(transport: Transport) -> None:
    with closing(SharedMemory()) as other:
        receipt = merge_receipts(published([transport, other], [slice(0, 3), slice(3, 5)], checksums=True))
        assert (receipt.num_tensors, receipt.num_bytes) == (1, 120)
        ((name, tensor),) = fetch_tensors(transport, receipt)
        assert name == "w" and torch.equal(tensor, WHOLE)
        ((_, tensor),) = fetch_tensors(transport, receipt, {"w": (slice(2, 4), slice(1, 6))})
        assert torch.equal(tensor, WHOLE[2:4, 1:6])
        ((_, tensor),) = fetch_tensors(transport, receipt, {"w": (slice(4, 5), slice(0, 2))})
        assert torch.equal(tensor, WHOLE[4:5, :2])


def test_a_whole_receipt_is_fetched_as_it_is(transport: Transport) -> None:
    receipt = transport.publish(1, [("w", WHOLE), ("scalar", torch.tensor(2.0))])
    assert merge_receipts([receipt]) is receipt
    assert dict(fetch_tensors(transport, receipt)).keys() == {"w", "scalar"}
    found = dict(fetch_tensors(transport, receipt, {"w": (slice(1, 2), slice(0, 6))}))
    assert torch.equal(found["w"], WHOLE[1:2]) and found["scalar"] == 2


@pytest.mark.parametrize("rows", [[slice(0, 3), slice(4, 5)], [slice(0, 3), slice(2, 5)], [slice(0, 3), slice(0, 2)]])
def test_missing_and_overlapping_pieces(transport: Transport, rows: list[slice]) -> None:
    with closing(SharedMemory()) as other:
        receipt = merge_receipts(published([transport, other], rows))
        with pytest.raises(RunError, match=r"pieces of tensor 'w' do not fill its shape \(5, 6\) once"):
            list(fetch_tensors(transport, receipt))


def test_a_changed_piece_is_named(transport: Transport) -> None:
    (receipt,) = published([transport], [slice(0, 5)], checksums=True)
    receipt = attrs.evolve(receipt, checksums={"w": "0" * 32})
    with pytest.raises(RunError, match="'w' of version 1 changed on its way"):
        list(fetch_tensors(transport, merge_receipts([receipt])))


def test_receipts_that_do_not_fit_together(transport: Transport) -> None:
    (piece,) = published([transport], [slice(0, 3)])
    with pytest.raises(RunError, match=r"published the versions \[\], not one"):
        merge_receipts([])
    with pytest.raises(RunError, match=r"published the versions \[1, 2\], not one"):
        merge_receipts([piece, attrs.evolve(piece, version=2)])
    with pytest.raises(RunError, match="2 ranks of the trainer published, and not all of them pieces"):
        merge_receipts([piece, attrs.evolve(piece, pieces=None)])


def test_a_piece_outside_its_whole(transport: Transport) -> None:
    with pytest.raises(ValueError, match=r"piece \(3, 6\) at \(3, 0\) is not inside tensor 'w' of shape \(5, 6\)"):
        publish_pieces(transport, 1, [("w", WHOLE[:3], (3, 0), (5, 6))])
