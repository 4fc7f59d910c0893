"""Exact training state to a folder and back: master weights, AdamW's moments, step, random state; one file a rank.

    save_state("ckpt/trainer", optimizer, step=10)
    step = load_state("ckpt/trainer", optimizer)

Files hold plain tensors and numbers and are read with `weights_only=True`. A shard is only good for the same number of
processes and the same degrees; to change those, go on from exported weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge_host.errors import RunError
from forge_plugin_titan.optim import Optimizer
from forge_plugin_titan.parallel import Degrees

FORMAT = 1


def save_state(path: str, optimizer: Optimizer, step: int, degrees: Degrees) -> None:
    """Write this rank's file into `path`. Returns when every rank's is there."""
    write_state(path, collect_state(optimizer, step, degrees))
    if dist.is_initialized():
        dist.barrier()


def collect_state(optimizer: Optimizer, step: int, degrees: Degrees, copy: bool = False) -> dict[str, Any]:
    """This rank's state; with `copy` in CPU memory of its own, which the next step does not change."""
    state = optimizer.adamw.state
    saved = {
        "format": FORMAT,
        "step": step,
        "degrees": _degrees(degrees),
        "masters": {name: _local(master) for name, master in optimizer.masters.items()},
        "moments": {
            name: {k: _local(v) for k, v in state[master].items()} for name, master in optimizer.masters.items()
            if master in state
        },
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }  # fmt: skip
    return _copied(saved) if copy else saved


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value.to("cpu", copy=True) if isinstance(value, Tensor) else value


def write_state(path: str, saved: dict[str, Any]) -> None:
    """Write this rank's file into `path`."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(saved, folder / _file())


def load_state(path: str, optimizer: Optimizer, degrees: Degrees) -> int:
    """Restore what `save_state` wrote; the number of finished steps.

    Raises:
        RunError: no file of this rank, one that cannot be read, or one for other degrees or another model.
    """
    file = Path(path) / _file()
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RunError(
            f"{file} is missing", fix="resume with as many trainer processes as saved the checkpoint"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}", fix="resume from an older checkpoint") from error
    if saved["format"] != FORMAT or {"context": 1, **saved["degrees"]} != _degrees(degrees):
        raise RunError(
            f"{file} was saved with {saved['degrees']}, this run has {_degrees(degrees)}",
            fix="resume with the same parallelism",
        )
    shapes = {name: tuple(_local(m).shape) for name, m in optimizer.masters.items()}
    if {name: tuple(t.shape) for name, t in saved["masters"].items()} != shapes:
        raise RunError(f"{file} holds the weights of another model", fix="resume with the model that was trained")
    with torch.no_grad():
        for name, master in optimizer.masters.items():
            _local(master).copy_(saved["masters"][name])
            if name in saved["moments"]:
                optimizer.adamw.state[master] = {k: _like(v, master) for k, v in saved["moments"][name].items()}
    optimizer.refresh()
    torch.set_rng_state(saved["rng"])
    if saved["cuda_rng"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda_rng"])
    return int(saved["step"])


def _file() -> str:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return f"rank{rank}-of-{world}.pt"


def _degrees(degrees: Degrees) -> dict[str, int]:
    return attrs.asdict(degrees)


def _local(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.to_local().detach()
    return value.detach() if isinstance(value, Tensor) else value


def _like(value: Any, master: Tensor) -> Any:
    """A saved moment where the master weight is, sharded as it is; AdamW's step counter is a plain scalar."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(master, DTensor) and value.dim() == master.dim():
        local = value.to(master.device)
        return DTensor.from_local(
            local, master.device_mesh, master.placements, run_check=False, shape=master.shape, stride=master.stride()
        )
    return value.to(master.device)
