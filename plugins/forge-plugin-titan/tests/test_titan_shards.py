"""Four processes over gloo, two by two: rows that tensor parallelism and FSDP both split and neither divides."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Table(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self):
        return self.weight.full_tensor()


class Tied(nn.Module):
    """A tied model as TorchTitan's are: splitting makes two parameters of one."""

    def __init__(self, weight):
        super().__init__()
        self.tok_embeddings, self.lm_head = Table(weight), Table(weight)
        self.lm_head.weight = self.tok_embeddings.weight

    def parallelize(self, mesh):
        for table in (self.tok_embeddings, self.lm_head):
            split(table, mesh, 0)

    def forward(self):
        return self.tok_embeddings(), self.lm_head()


def split(table, mesh, dim):
    from torch.distributed.tensor import Shard, distribute_tensor

    table.weight = nn.Parameter(distribute_tensor(table.weight.detach(), mesh, [Shard(dim)]))


def parts_and_wholes(mesh, rows, dim):
    """What FSDP makes of a table that is split along `dim` is what `fill` filled, and `gather` gives it back."""
    from forge_plugin_titan.shards import fill, gather, place
    from torch.distributed.fsdp import fully_shard

    full = torch.arange(rows * 5.0).reshape(rows, 5)
    table = Table(full)
    split(table, mesh["tp"], dim)
    fully_shard(table, mesh=mesh["fsdp"])
    held = table.weight
    assert place(held)[0] == tuple(held.to_local().shape)
    start = place(held)[1]
    expected = full[start[0] :, start[1] :][tuple(slice(n) for n in held.to_local().shape)]
    assert torch.equal(held.to_local(), expected)
    with torch.no_grad():
        held.zero_()
        fill(held, full.double())
    assert torch.equal(held.to_local(), expected) and torch.equal(gather(held.detach()), full)
    assert torch.equal(table(), full)


def tied_update(mesh):
    """Both uses of a tied weight see what an update has made of it."""
    from forge_plugin_titan.parallel import _kept_tied
    from forge_plugin_titan.shards import fill, gather
    from torch.distributed.fsdp import fully_shard

    full = torch.arange(194.0).reshape(97, 2)
    model = _kept_tied(Tied(torch.empty(97, 2, device="meta")))
    model.parallelize(mesh["tp"])
    fully_shard([model.tok_embeddings, model.lm_head], mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])
    model.to_empty(device="cpu")
    model.tok_embeddings.weight = model.lm_head.weight
    (weight,) = model.parameters()
    with torch.no_grad():
        fill(weight, full)
        model()
        weight.add_(1.0)
        assert torch.equal(gather(weight), full + 1.0)
        assert all(torch.equal(used, full + 1.0) for used in model())


def run_rank(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=4)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    for rows in (96, 97, 98, 61, 3, 1):
        parts_and_wholes(mesh, rows, 0)
    parts_and_wholes(mesh, 97, 1)
    tied_update(mesh)
    dist.destroy_process_group()


@pytest.mark.slow
def test_uneven_rows_under_both_axes():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run_rank, (port,), nprocs=4)
