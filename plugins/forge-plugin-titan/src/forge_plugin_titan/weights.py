"""Weights in and out in Hugging Face form: reading safetensors, gathered full tensors by name, and a loadable folder.

    load_weights(model, spec)
    for name, tensor in hf_tensors(model, spec, torch.bfloat16): ...
    save_folder("out", model, spec, torch.float32)

Names and shapes are Hugging Face's; a tied head is not given twice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge_host.errors import UsageError
from forge_plugin_titan import lora
from forge_plugin_titan.models import ModelSpec, read_config
from forge_plugin_titan.shards import fill, gather

#: A folder's files that belong to the tokenizer or to generation and are handed on unchanged.
PASSED_ON = ("tokenizer*", "*.model", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
             "chat_template*", "generation_config.json")  # fmt: skip


def read_safetensors(path: str) -> dict[str, Tensor]:
    """Every tensor of a folder's *.safetensors, memory-mapped.

    Raises:
        UsageError: there are none, or the index names a file that is not there.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(path)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted({folder / f for f in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{path} has no *.safetensors", fix="download the model's weights, or choose another folder")
    out: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(str(file), framework="pt") as opened:
                out.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
        except (FileNotFoundError, SafetensorError) as error:
            raise UsageError(f"{file} cannot be read: {error}", fix="download the model again") from error
    return out


def load_weights(model: nn.Module, spec: ModelSpec) -> None:
    """Fill `model` (parallelised or not) from the folder; dtypes are the model's.

    Raises:
        UsageError: the weights are not those that config.json describes.
    """
    given = read_safetensors(spec.path)
    if spec.tied:
        given.pop("lm_head.weight", None)  # older exports hold the tied weight twice
    adapter = spec.adapter(spec.config, None)
    try:
        state = adapter.from_hf(given)
    except KeyError as error:
        raise UsageError(
            f"{spec.path}: tensor {error} is not one that a {spec.family} model has", fix="check config.json"
        ) from error
    expected = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    state = {**state, **lora.fresh({k: v for k, v in expected.items() if lora.is_adapter(k)}, spec.seed)}
    found = {k: tuple(v.shape) for k, v in state.items()}
    wrong = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
    if wrong:
        raise UsageError(
            f"{spec.path}: {len(wrong)} tensors do not fit config.json, such as {wrong[0]} with shape "
            f"{found.get(wrong[0], 'missing')} where {expected.get(wrong[0], 'nothing')} belongs",
            fix="use the config.json that came with the weights",
        )
    if not any(isinstance(p, DTensor) for p in model.parameters()):
        model.load_state_dict(state)  # a fused matrix's parts are copies in the state dict
        return
    with torch.no_grad():
        for name, target in model.state_dict().items():
            fill(target, state[name])


def hf_tensors(model: nn.Module, spec: ModelSpec, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Full tensors of the model under their Hugging Face names, in `dtype`, layer by layer, adapters merged.

    With sharded parameters every rank must go through the whole iterator: gathering is a collective.
    """
    adapter = spec.adapter(spec.config, None)
    for prefix, module in modules(model):
        part = module_state(module, prefix, spec)
        if part:
            yield from whole(adapter, part, spec, dtype)


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model in parts with their prefixes, layer by layer.

    One layer at a time, because TorchTitan splits fused matrices into copies: they are used while in cache.
    """
    for name, child in model.named_children():
        inner = child.named_children() if name == "layers" else ()
        yield from [(f"{name}.{key}.", layer) for key, layer in inner] or [(f"{name}.", child)]


def module_state(module: nn.Module, prefix: str, spec: ModelSpec) -> dict[str, Tensor]:
    """A part's own tensors under their TorchTitan names; a tied head is left out."""
    found: dict[str, Tensor] = module.state_dict(prefix=prefix)
    if spec.tied:
        found.pop("lm_head.weight", None)
    return found


def whole(
    adapter: Any, part: Mapping[str, Tensor], spec: ModelSpec, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """One layer's tensors gathered, its adapters merged, in `dtype` under their Hugging Face names."""
    full = {k: gather(v.detach()) for k, v in part.items()}
    full = cast(lora.merged(full, spec.lora_scaling), dtype)
    if spec.tied and "tok_embeddings.weight" in full:
        yield "model.embed_tokens.weight", full["tok_embeddings.weight"]
    else:  # gate and up next to each other, as vLLM has them in one matrix: it can take them as they are then
        yield from sorted(adapter.to_hf(full).items(), key=lambda item: ".down_proj." in item[0])


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """`tensor.to(dtype)` of each, by one launch for all on a GPU."""
    out = dict(tensors)
    others = {name: tensor for name, tensor in tensors.items() if tensor.dtype != dtype}
    if others:
        made = {name: torch.empty_like(tensor, dtype=dtype) for name, tensor in others.items()}
        torch._foreach_copy_(list(made.values()), list(others.values()))
        out |= made
    return out


def save_folder(path: str, model: nn.Module, spec: ModelSpec, dtype: torch.dtype) -> None:
    """Write a folder that transformers and vLLM load: config, tokenizer, one model.safetensors. Rank 0 writes."""
    from safetensors.torch import save_file

    writes = not dist.is_initialized() or dist.get_rank() == 0
    tensors: dict[str, Tensor] = {}
    for name, tensor in hf_tensors(model, spec, dtype):
        if writes:
            tensors[name] = tensor.cpu().contiguous()
    if not writes:
        return
    source, folder = Path(spec.path), Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in PASSED_ON:
        for file in source.glob(pattern):
            if file.is_file() and file.resolve() != (folder / file.name).resolve():
                shutil.copyfile(file, folder / file.name)
    config: Mapping[str, Any] = {**read_config(spec.path), "dtype": str(dtype).removeprefix("torch.")}
    config = {k: v for k, v in config.items() if k != "torch_dtype"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
