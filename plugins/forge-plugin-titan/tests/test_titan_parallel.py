"""Two processes over gloo: FSDP and tensor parallelism give the step that one process gives."""

from __future__ import annotations

import os
import socket

import attrs
import pytest
import torch
import torch.multiprocessing as mp
from titan_helpers import batches, make_rows, objective, save_model

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import UsageError

TRAINING = TrainingConfig(dtype="float32", seq_len=64, learning_rate=1e-3, max_grad_norm=0.5)


def run_rank(rank, world, port, folder, parallelism, training, out):
    """Two steps and everything there is to know about them; the file of rank 0 is compared."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.device import prepare

    prepare("cpu", num_threads=1, timeout_s=60)
    from forge_plugin_titan.engine import TitanEngine

    def make():
        return TitanEngine(TitanConfig(fuse_qkv=False), folder, training, parallelism, objective())

    engine = make()
    rows = make_rows(seed=1, groups=4, per_group=4)
    inputs, targets = batches([rows[:8], rows[8:]])
    steps = []
    for _ in range(2):
        loss = engine.train_step(inputs, targets)
        steps.append((loss, engine.metrics()["policy/grad_norm"], engine.metrics()["tokens/trained"]))
    logprobs = engine.logprobs(inputs, targets)
    engine.save(f"{out}/state")
    third = engine.train_step(inputs, targets)
    again = make()
    again.load(f"{out}/state")
    engine.save_hf(f"{out}/hf")
    weights = {name: tensor.clone() for name, tensor in engine.named_tensors()}
    resumed = again.train_step(inputs, targets)
    torch.save(
        {"steps": steps, "logprobs": logprobs, "weights": weights, "third": third, "resumed": resumed},
        f"{out}/rank{rank}.pt",
    )


def run(folder, out, world, parallelism, training=TRAINING):
    out.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run_rank, (world, port, folder, parallelism, training, str(out)), nprocs=world)
    return [torch.load(out / f"rank{rank}.pt") for rank in range(world)]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def alone(request, tmp_path_factory):
    """The folder of a model and what one process makes of it."""
    base = tmp_path_factory.mktemp(request.param)
    save_model(str(base / "model"), request.param, tied=request.param == "llama")
    return str(base / "model"), run(str(base / "model"), base / "alone", 1, ParallelismConfig())[0]


@pytest.mark.parametrize(
    "degrees",
    [
        {"data_parallel_shard_degree": -1},
        {"tensor_parallel_degree": 2},
        {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1},
    ],
    ids=["shard", "tensor", "replicate"],
)
def test_two_processes_take_the_step_of_one(alone, tmp_path, degrees):
    folder, expected = alone
    ranks = run(folder, tmp_path / "two", 2, ParallelismConfig(**degrees))
    for found in ranks:
        for (loss, norm, tokens), (loss1, norm1, tokens1) in zip(found["steps"], expected["steps"], strict=True):
            assert loss == pytest.approx(loss1, abs=1e-5)
            assert norm == pytest.approx(norm1, rel=1e-5)
            assert tokens == tokens1
        for a, b in zip(found["logprobs"], expected["logprobs"], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-4)
        assert found["resumed"] == found["third"]
        assert found["weights"].keys() == expected["weights"].keys()
        for name, tensor in expected["weights"].items():
            torch.testing.assert_close(found["weights"][name], tensor, rtol=0, atol=2e-4, msg=name)
    assert all(torch.equal(ranks[0]["weights"][n], ranks[1]["weights"][n]) for n in ranks[0]["weights"])


def test_bfloat16_and_recomputation_on_shards(alone, tmp_path):
    folder, expected = alone
    training = attrs.evolve(TRAINING, dtype="bfloat16", gradient_checkpointing=True)
    found = run(folder, tmp_path / "two", 2, ParallelismConfig(), training)[0]
    assert found["steps"][0][0] == pytest.approx(expected["steps"][0][0], abs=0.05)
    assert found["resumed"] == found["third"]
    assert all(tensor.dtype == torch.bfloat16 for tensor in found["weights"].values())


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor_parallel_degree": 3}, "tensor 3 x replicate 1 x shard 1 = 3 processes, services.trainer.procs is 4"),
        ({"data_parallel_shard_degree": 2}, "tensor 1 x replicate 1 x shard 2 = 2 processes"),
        ({"pipeline_parallel_degree": 2}, "does not support pipeline_parallel_degree 2"),
        ({"context_parallel_degree": 2}, "does not support context_parallel_degree 2"),
        ({"expert_parallel_degree": 2}, "dense models only"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(degrees, message):
    from forge_plugin_titan.parallel import resolve

    with pytest.raises(UsageError, match=message):
        resolve(ParallelismConfig(**degrees), 4)


def test_rest_of_the_processes_shard():
    from forge_plugin_titan.parallel import resolve

    degrees = resolve(ParallelismConfig(tensor_parallel_degree=2), 8)
    assert (degrees.shard, degrees.data) == (4, 4)
