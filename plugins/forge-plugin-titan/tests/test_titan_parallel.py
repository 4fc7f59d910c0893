"""Two processes over gloo: FSDP, tensor and context parallelism give the step that one process gives."""

from __future__ import annotations

import faulthandler
import os
import random
import socket
import sys
import time

import attrs
import pytest
import torch
import torch.multiprocessing as mp
from titan_helpers import batches, make_row, make_rows, objective, save_model

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import UsageError
from forge_host.types import Aggregation

TRAINING = TrainingConfig(dtype="float32", seq_len=64, learning_rate=1e-3, max_grad_norm=0.5)


LORA = {"lora_rank": 4}
CONTEXT = ParallelismConfig(context_parallel_degree=2)
CASES = {
    "shard": (ParallelismConfig(), TRAINING),
    "tensor": (ParallelismConfig(tensor_parallel_degree=2), TRAINING),
    "context": (CONTEXT, TRAINING),
    "lora-shard": (ParallelismConfig(), TRAINING),
    "lora-tensor": (ParallelismConfig(tensor_parallel_degree=2), TRAINING),
    "lora-context": (CONTEXT, TRAINING),
    "replicate": (ParallelismConfig(data_parallel_replicate_degree=2, data_parallel_shard_degree=1), TRAINING),
    "bfloat16": (ParallelismConfig(), attrs.evolve(TRAINING, dtype="bfloat16", gradient_checkpointing=True)),
    "bfloat16-context": (CONTEXT, attrs.evolve(TRAINING, dtype="bfloat16", gradient_checkpointing=True)),
}
FAMILIES = ("llama", "qwen3")


def three_steps(folder, parallelism, training, out, lora=False):
    """Two steps, a checkpoint, a third step, and the same third step from the checkpoint; gradients of the first."""
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.engine import TitanEngine
    from forge_plugin_titan.rehearsal import rehearse

    def make():
        config = TitanConfig(fuse_qkv=False, **(LORA if lora else {}))
        return TitanEngine(config, folder, training, parallelism, objective())

    engine = make()
    if torch.distributed.is_initialized():
        rehearse(engine)
    rows = make_rows(seed=1, groups=4, per_group=4)
    inputs, targets = batches([rows[:8], rows[8:]])
    gradients = first_gradients(make(), inputs, targets)
    steps = []
    for _ in range(2):
        loss = engine.train_step(inputs, targets)
        steps.append((loss, engine.metrics()["policy/grad_norm"], engine.metrics()["tokens/trained"]))
    logprobs = engine.logprobs(inputs, targets)
    weights = {name: tensor.clone() for name, tensor in engine.named_tensors()}
    pieces = through_pieces(engine) if torch.distributed.is_initialized() else None
    state = [v for s in engine.optimizer.adamw.state.values() for v in s.values() if v.dim()]
    moments = sum(local(v).numel() for v in state)
    engine.save(f"{out}/state")
    engine.save_hf(f"{out}/hf")
    third = engine.train_step(inputs, targets)
    again = make()
    again.load(f"{out}/state")
    resumed = again.train_step(inputs, targets)
    return {
        "steps": steps, "logprobs": logprobs, "weights": weights, "third": third, "resumed": resumed,
        "gradients": gradients, "moments": moments, "pieces": pieces,
    }  # fmt: skip


def through_pieces(engine):
    """What a reader gets of the pieces that both ranks publish, each compared with its checksum; this rank's bytes."""
    from forge_host.builtin.transports.shm import SharedMemory
    from forge_host.loop.pieces import fetch_tensors, merge_receipts, publish_pieces

    transport = SharedMemory()
    transport.open(f"pieces-{engine.rank}")
    mine = publish_pieces(transport, 1, engine.named_pieces(), checksums=True)
    receipts = [None, None]
    torch.distributed.all_gather_object(receipts, mine)
    read = {name: t.clone() for name, t in fetch_tensors(transport, merge_receipts([r for r in receipts if r]))}
    torch.distributed.barrier()
    transport.close()
    return read, mine.num_bytes


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def first_gradients(engine, inputs, targets):
    """Whole gradients of the first step, before clipping."""
    from forge_plugin_titan.shards import gather

    found = {}

    def take(*_):
        for name, master in engine.optimizer.masters.items():
            grad = master.grad
            found[name] = gather(grad).clone()
        return torch.zeros(())

    engine.optimizer.clip = take
    engine.train_step(inputs, targets)
    return found


def sequence_ratio(logprobs, generator_logprobs, advantages, padding_mask):
    """One ratio a response, as GSPO's."""
    from forge_host.rl import safe_exp, sequence_log_ratio

    return -safe_exp(sequence_log_ratio(logprobs, generator_logprobs, padding_mask)) * advantages


def sequence_gradients(folder, parallelism):
    """Loss and gradients of whole sequences with an entropy bonus, prompts shared and not.

    In the last micro-batch only the last token predicts a response token: of two processes the first has none.
    """
    from forge_plugin_titan.config import TitanConfig
    from forge_plugin_titan.engine import TitanEngine

    from forge_host.rl import Objective

    rows = make_rows(seed=2, groups=3, per_group=3)
    lone = make_row(random.Random(0), range(13), 1)
    inputs, targets = batches([rows, [lone]])
    whole = Objective(sequence_ratio, Aggregation(mode="sequence-mean"), entropy_coef=0.01)
    found = {}
    for share_prompts in (True, False):
        config = TitanConfig(fuse_qkv=False, share_prompts=share_prompts)
        engine = TitanEngine(config, folder, TRAINING, parallelism, whole)
        gradients = first_gradients(engine, inputs, targets)
        found |= {f"{name} {share_prompts}": gradient for name, gradient in gradients.items()}
        found[f"loss {share_prompts}"] = torch.tensor(engine.metrics()["policy/loss"])
        found[f"tokens {share_prompts}"] = torch.tensor(engine.metrics()["tokens/trained"])
    return found


def join(rank, port):
    """Make this process one of two."""
    faulthandler.enable()
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    from forge_plugin_titan.device import prepare

    prepare("cpu", num_threads=1, timeout_s=60)


def run_rank(rank, port, base):
    join(rank, port)
    for family in FAMILIES:
        for case, (parallelism, training) in CASES.items():
            out = f"{base}/{family}-{case}"
            found = three_steps(f"{base}/{family}", parallelism, training, out, case.startswith("lora"))
            torch.save(found, f"{base}/{family}-{case}.{rank}.pt")
        torch.save(sequence_gradients(f"{base}/{family}", CONTEXT), f"{base}/{family}-sequence.{rank}.pt")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder with both models and what two processes made of them, started once: importing takes most of the time."""
    base = tmp_path_factory.mktemp("parallel")
    for family in FAMILIES:
        save_model(str(base / family), family, tied=family == "llama")
    mp.spawn(run_rank, (free_port(), str(base)), nprocs=2)
    return base


@pytest.fixture(scope="module", params=FAMILIES)
def alone(request, base):
    """A family, and what this one process makes of it."""
    from forge_plugin_titan.device import prepare

    prepare("cpu", num_threads=1)
    out = base / f"{request.param}-alone"
    return request.param, three_steps(str(base / request.param), ParallelismConfig(), TRAINING, str(out))


@pytest.fixture(scope="module")
def alone_with_lora(alone, base):
    family, _ = alone
    return family, three_steps(
        str(base / family), ParallelismConfig(), TRAINING, str(base / f"{family}-alone-lora"), lora=True
    )


def ranks(base, family, case):
    return [torch.load(base / f"{family}-{case}.{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["shard", "tensor", "context", "replicate"])
def test_two_processes_take_the_steps_of_one(base, alone, case):
    same_steps(*alone, ranks(base, alone[0], case))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lora-shard", "lora-tensor", "lora-context"])
def test_two_processes_train_the_adapters_of_one(base, alone_with_lora, case):
    same_steps(*alone_with_lora, ranks(base, alone_with_lora[0], case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["shard", "tensor", "context", "replicate", "lora-shard", "lora-tensor", "lora-context"]
)
def test_gradients_agree(base, alone, alone_with_lora, case):
    """In float32, relative to the largest gradient of each matrix, 1e-5."""
    family, expected = alone_with_lora if case.startswith("lora") else alone
    for found in ranks(base, family, case):
        same_gradients(found["gradients"], expected["gradients"])


@pytest.mark.slow
def test_a_sequence_split_over_processes_has_the_gradients_of_whole_ones(base, alone):
    family, _ = alone
    expected = sequence_gradients(str(base / family), ParallelismConfig())
    assert float(expected["loss True"]) == pytest.approx(float(expected["loss False"]), abs=1e-6)
    for found in ranks(base, family, "sequence"):
        same_gradients(found, expected)


def same_gradients(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        limit = 1e-5 * float(gradient.abs().max()) + 1e-9
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=limit, msg=name)


@pytest.mark.slow
def test_shards_share_the_optimizers_state(base, alone):
    family, expected = alone
    for case in ("shard", "context"):
        both = [found["moments"] for found in ranks(base, family, case)]
        assert sum(both) == expected["moments"]
        assert max(both) < 0.6 * expected["moments"]
    assert all(found["moments"] == expected["moments"] for found in ranks(base, family, "replicate"))


def same_steps(family, expected, both):
    for found in both:
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
    assert all(torch.equal(both[0]["weights"][n], both[1]["weights"][n]) for n in both[0]["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_ranks_publish_what_they_hold(base, alone, case):
    both = ranks(base, alone[0], case)
    whole = both[0]["weights"]
    for found in both:
        read, _ = found["pieces"]
        assert read.keys() == whole.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in whole.items())
    sizes = [found["pieces"][1] for found in both]
    assert sum(sizes) == sum(tensor.nbytes for tensor in whole.values())
    assert sizes[1] == 0 if case == "replicate" else sizes[1] > 0
    if case in ("shard", "tensor", "context", "bfloat16"):
        assert max(sizes) < 0.7 * sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["bfloat16", "bfloat16-context"])
def test_bfloat16_and_recomputation_on_shards(base, alone, case):
    family, expected = alone
    found = ranks(base, family, case)[0]
    assert found["steps"][0][0] == pytest.approx(expected["steps"][0][0], abs=0.05)
    assert found["resumed"] == found["third"]
    assert all(tensor.dtype == torch.bfloat16 for tensor in found["weights"].values())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["shard", "tensor", "context"])
def test_sharded_models_export_what_they_publish(base, alone, case):
    from safetensors.torch import load_file

    family, _ = alone
    published = ranks(base, family, case)[0]["weights"]
    exported = load_file(base / f"{family}-{case}" / "hf" / "model.safetensors")
    assert exported.keys() == published.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in published.items())


def leave_with_work_in_flight(_, ports):
    """Fork a pair of ranks for each port: the first ends at once, the second takes part in its work only later."""
    torch.set_num_threads(1)
    import forge_plugin_titan.device  # noqa: F401 - once, before the forks

    for i, port in enumerate(ports):
        pids = []
        for rank in range(2):
            pid = os.fork()
            if not pid:
                join(rank, port)
                time.sleep(rank * 0.01 * i)
                works = [torch.distributed.all_reduce(torch.ones(1000), async_op=True) for _ in range(1000)]
                del works
                sys.exit(0)
            pids.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        assert statuses == [0, 0]


@pytest.mark.slow
def test_a_rank_that_ends_with_work_in_flight_does_not_abort():
    mp.spawn(leave_with_work_in_flight, ([free_port() for _ in range(8)],))


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor_parallel_degree": 3}, "tensor 3 x context 1 x replicate 1 x shard 1 = 3 processes, services.trainer"),
        (
            {"context_parallel_degree": 3},
            "tensor 1 x context 3 x replicate 1 x shard 1 = 3 .*services.trainer.procs is 4",
        ),
        ({"data_parallel_shard_degree": 2}, "tensor 1 x context 1 x replicate 1 x shard 2 = 2 processes"),
        ({"pipeline_parallel_degree": 2}, "does not support parallelism.pipeline_parallel_degree 2"),
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
    degrees = resolve(ParallelismConfig(tensor_parallel_degree=2, context_parallel_degree=2), 8)
    assert (degrees.shard, degrees.data) == (2, 2)


@pytest.mark.parametrize("axis", ["pipeline", "expert"])
def test_an_axis_that_is_refused_stops_the_plan(axis):
    from forge_host.config import resolve
    from forge_host.plugins import PluginHost

    host = PluginHost.load(("titan",))
    options = [f"parallelism.{axis}_parallel_degree=2", "services.trainer.procs=2"]
    with pytest.raises(UsageError, match=f"does not support parallelism.{axis}_parallel_degree 2: "):
        resolve("quickstart", host=host, overrides=options)
