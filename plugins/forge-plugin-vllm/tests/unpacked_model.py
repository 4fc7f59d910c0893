"""A vLLM model on the CPU as it is on a GPU: its parameters as loaded, not packed. One process, one model.

python unpacked_model.py FOLDER     # prints "ok", or what is wrong
"""

import os
import sys
from typing import Any

import torch


def build(folder: str) -> tuple[torch.nn.Module, Any]:
    """vLLM's model class for the folder's config.json, parameters not initialised; and its model configuration."""
    os.environ.update(VLLM_HOST_IP="127.0.0.1", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")
    from vllm import EngineArgs
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    arguments = EngineArgs(model=folder, dtype="bfloat16", max_model_len=64, enforce_eager=True)
    config = arguments.create_engine_config()
    with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)
        model = initialize_model(config)
        record_metadata_for_reloading(model)
        return model, config.model_config


def pack(model: torch.nn.Module, config: Any, first: dict[str, torch.Tensor]) -> None:
    """Packing directly gives what loading and then packing gives."""
    from forge_plugin_vllm.packing import record_packed
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    def everything() -> None:
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if hasattr(module, "weight") and hasattr(method, "process_weights_after_loading"):
                method.process_weights_after_loading(module)

    third = {name: torch.randn(t.shape).to(torch.bfloat16) for name, t in first.items()}
    model.load_weights(iter(third.items()))
    everything()
    initialize_layerwise_reload(model)
    model.load_weights(iter(third.items()))
    finalize_layerwise_reload(model, config)
    assert [m for m in model.modules() if getattr(m, "weight", None) is not None and not m.weight.numel()], "packed"
    plan = record_packed(model, {name: tuple(t.shape) for name, t in first.items()})
    assert plan.problem() is None, plan.problem()
    expected = plan.outputs()
    plan.write(first)
    other = plan.outputs()
    plan.write({name: t.float() for name, t in third.items()})
    again = plan.outputs()
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(expected, other, strict=True))
    as_they_lie(model, third)
    embeddings = [m for m in model.modules() if isinstance(m, VocabParallelEmbedding)]
    assert len(plan.packed) == 8 and len(plan.kept) == 1 and len(expected) >= 8 + len(embeddings) - 1
    print("packed", len(plan.packed), "layers,", len(expected), "outputs")


def as_they_lie(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """The model's present tensors, q, k, v and gate, up behind each other as a trainer has them: packed from there."""
    from forge_plugin_vllm.packing import record_packed

    from forge_host.builtin.transports.shm import SharedMemory

    order = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    rank = {name: next((i for i, part in enumerate(order) if part in name), len(order)) for name in tensors}
    layers = sorted(tensors, key=lambda name: (name.split(".")[2] if ".layers." in name else "", rank[name]))
    transport = SharedMemory()
    receipt = transport.publish(1, ((name, tensors[name]) for name in layers))
    plan = record_packed(model, {name: tuple(tensors[name].shape) for name in layers})
    expected = plan.outputs()
    for room in plan.rooms:
        room.zero_()
    views = transport.fetch(receipt)
    held = dict(next(views) for _ in layers)
    plan.write({name: torch.zeros_like(t) for name, t in held.items()})
    assert not any(torch.equal(a, b) for a, b in zip(expected, plan.outputs(), strict=True))
    plan.write(held)
    assert all(torch.equal(a, b) for a, b in zip(expected, plan.outputs(), strict=True))
    assert not any(bool(room.any()) for room in plan.rooms)
    assert next(views, None) is None
    transport.close()


def main(folder: str) -> None:
    from forge_plugin_vllm.inplace import record
    from safetensors.torch import load_file

    model, config = build(folder)
    first = load_file(f"{folder}/model.safetensors")
    plan = record(model, {name: tuple(t.shape) for name, t in first.items()})
    assert plan.problem() is None, plan.problem()
    model.load_weights(iter(first.items()))
    assert plan.differs(first) is None, plan.differs(first)
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    second = {name: torch.randn(t.shape).to(torch.bfloat16) for name, t in first.items()}
    plan.write({name: t.float() for name, t in second.items()})  # the trainer's dtype may be another
    written = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert plan.differs(second) is None and plan.differs(first) is not None
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    model.load_weights(iter(second.items()))
    for name, p in model.named_parameters():
        assert p.data_ptr() == places[name], name
        real = p if "embed" not in name and "head" not in name else p[: len(first["model.embed_tokens.weight"])]
        assert torch.equal(real, written[name][: len(real)]), name
    fewer = {name: tuple(t.shape) for name, t in first.items() if "layers.0.self_attn.k_proj.weight" not in name}
    assert "qkv_proj" in (record(model, fewer).problem() or "")
    pack(model, config, first)
    print("ok", len(plan.pieces), "pieces", len(plan.parameters), "parameters")


if __name__ == "__main__":
    main(sys.argv[1])
