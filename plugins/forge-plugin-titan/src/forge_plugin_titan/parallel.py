"""Builds the model on its device, split over processes as `parallelism:` says, with its weights loaded.

One process takes the model as it is. Several go through TorchTitan's own `parallelize` (FSDP2, tensor and context
parallelism) with its "partial_dtensor" backend, the one that runs on gloo too. Context parallelism there gathers keys
and values of the whole stream in every layer's attention and adds their gradients up on the way back; parameters are
sharded over context-parallel ranks as they are over data-parallel ones.

    mesh = resolve(ParallelismConfig(), world_size=1)
    built = build(spec, mesh, training, device)
"""

from __future__ import annotations

import types
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import nn

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import UsageError
from forge_plugin_titan.config import refusal
from forge_plugin_titan.models import ModelSpec
from forge_plugin_titan.weights import load_weights

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@attrs.frozen(kw_only=True)
class Degrees:
    """Processes along each axis; their product is the number of processes."""

    replicate: int
    shard: int
    context: int
    tensor: int

    @property
    def data(self) -> int:
        """Processes that get different data."""
        return self.replicate * self.shard


def resolve(config: ParallelismConfig, world_size: int) -> Degrees:
    """The degrees for `world_size` processes.

    Raises:
        UsageError: an axis that this trainer cannot split, or a product that is not `world_size`.
    """
    refused = refusal(config)
    if refused is not None:
        raise UsageError(refused[0], where="parallelism", fix=refused[1])
    tensor, context = config.tensor_parallel_degree, config.context_parallel_degree
    replicate, shard = config.data_parallel_replicate_degree, config.data_parallel_shard_degree
    split = tensor * context * replicate
    if shard == -1:
        shard = max(1, world_size // split)
    if shard < 1 or split * shard != world_size:
        raise UsageError(
            f"tensor {tensor} x context {context} x replicate {replicate} x shard {shard} = {split * shard} processes, "
            f"services.trainer.procs is {world_size}",
            where="parallelism", fix=f"make the product {world_size}, or set services.trainer.procs to match",
        )  # fmt: skip
    return Degrees(replicate=replicate, shard=shard, context=context, tensor=tensor)


@attrs.frozen(eq=False, kw_only=True)
class Built:
    """A model ready to run, and TorchTitan's meshes when there are several processes."""

    model: Any
    dims: Any = None
    data_rank: int = 0
    context_rank: int = 0

    def group(self, axis: str) -> Any:
        """Process group of an axis ("batch", "cp", "tp"), None when it has one process."""
        mesh = self.dims.get_optional_mesh(axis) if self.dims is not None else None
        return mesh.get_group() if mesh is not None else None


def build(
    spec: ModelSpec, degrees: Degrees, training: TrainingConfig, device: torch.device, *,
    trains: bool = True, cpu_offload: bool = False,
) -> Built:  # fmt: skip
    """The model with its weights in `param_dtype`, on `device`.

    Args:
        trains: False builds a frozen model in the compute dtype (a reference model).
        cpu_offload: shards live in CPU memory (several processes; `Optimizer` does it for one).

    Raises:
        UsageError: a setting that cannot be honoured here.
    """
    compute, param = DTYPES[training.dtype], DTYPES[training.param_dtype]
    if "float16" in (training.dtype, training.param_dtype):
        raise UsageError("the titan trainer has no loss scaling, which float16 needs", fix="use bfloat16 or float32")
    if compute == torch.float32 and param == torch.bfloat16:
        raise UsageError(
            "training.dtype float32 is wider than training.param_dtype bfloat16", fix="set both to float32"
        )
    world = degrees.data * degrees.context * degrees.tensor
    if world == 1:
        model = _single(spec, training, param if trains else compute, device, trains)
        return Built(model=model)
    dtype = param if trains else compute
    return _distributed(spec, degrees, training, dtype, device, trains, cpu_offload and device.type == "cuda")


def _single(spec: ModelSpec, training: TrainingConfig, dtype: torch.dtype, device: torch.device, trains: bool) -> Any:
    from torchtitan.config import CompileConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.distributed.compile import apply_compile

    model = _on_meta(spec, dtype)
    if trains and training.gradient_checkpointing:
        FullAC.Config(preserve_rng_state=False).build(dump_folder="").apply(model)
    if training.compile:
        one = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, world_size=1)
        apply_compile(model, compile_config=CompileConfig(enable=True, components=["model"]), parallel_dims=one)
    return _fill(model, spec, device, trains)


def _distributed(
    spec: ModelSpec, degrees: Degrees, training: TrainingConfig, param: torch.dtype, device: torch.device, trains: bool,
    cpu_offload: bool,
) -> Built:  # fmt: skip
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.config import CompileConfig
    from torchtitan.config import ParallelismConfig as TitanParallelism
    from torchtitan.config import TrainingConfig as TitanTraining
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.distributed.utils import set_spmd_backend

    parallelism = TitanParallelism(
        data_parallel_replicate_degree=degrees.replicate, data_parallel_shard_degree=degrees.shard,
        tensor_parallel_degree=degrees.tensor, context_parallel_degree=degrees.context,
        enable_sequence_parallel=False, spmd_backend="partial_dtensor",
    )  # fmt: skip
    dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    set_spmd_backend(parallelism.spmd_backend)
    try:
        spec.config.update_from_config(config=types.SimpleNamespace(parallelism=parallelism))
    except ValueError as error:  # TorchTitan's own check: heads that the tensor degree does not divide
        raise UsageError(str(error).rstrip("."), where="parallelism") from error
    model = spec.parallelize(
        _kept_tied(_on_meta(spec, param)) if spec.tied else _on_meta(spec, param),
        parallel_dims=dims,
        training=TitanTraining(
            mixed_precision_param=training.dtype, mixed_precision_reduce="float32", enable_cpu_offload=cpu_offload
        ),
        parallelism=parallelism,
        compile_config=CompileConfig(enable=training.compile, components=["model"]),
        ac_config=FullAC.Config(preserve_rng_state=False) if trains and training.gradient_checkpointing else None,
        dump_folder="",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Gradients are sums: losses are normalised over the whole step's tokens. gloo has no averaging anyway.
            module.set_force_sum_reduction_for_comms(True)
    data, context = (
        mesh.get_local_rank() if mesh is not None else 0 for mesh in map(dims.get_optional_mesh, ("batch", "cp"))
    )
    filled = _fill(model, spec, device, trains, torch.device("cpu") if cpu_offload else device)
    return Built(model=filled, dims=dims, data_rank=data, context_rank=context)


def _kept_tied(model: Any) -> Any:
    """`model`, whose tied weight is one parameter still after tensor parallelism has split it.

    TorchTitan makes two of it and ties them when FSDP already has both. Where a shard is padded, each is then gathered
    from memory of its own, and only one of them is trained.
    """
    split = model.parallelize

    def parallelize(dims: Any) -> None:
        split(dims)
        model.tok_embeddings.weight = model.lm_head.weight

    model.parallelize = parallelize
    return model


def _on_meta(spec: ModelSpec, dtype: torch.dtype) -> Any:
    from torchtitan.tools.utils import set_default_dtype

    with torch.device("meta"), set_default_dtype(dtype):
        return spec.config.build()


def _fill(
    model: Any, spec: ModelSpec, device: torch.device, trains: bool, weights_device: torch.device | None = None
) -> nn.Module:
    model.to_empty(device=weights_device or device)
    with torch.no_grad():
        # Ties the head, computes the rotary tables, draws adapters; other parameters stay empty.
        model.init_states(buffer_device=device)
    load_weights(model, spec)
    model.train(trains)
    # TorchTitan's converter has frozen all but the adapters.
    return model if trains and spec.adapters else model.requires_grad_(trains)  # type: ignore[no-any-return]
