"""Model folders with random weights, for measuring: only the shape matters.

path = random_model("/tmp/qwen3-0.6b", "0.6B", device="cuda")      # a Hugging Face folder
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

#: config.json of each shape; "tiny" is for tests.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512},
    "135M": {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
             "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152},
    "0.6B": {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
    "1.7B": {"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}  # fmt: skip
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def random_model(path: str | Path, shape: str, device: str = "cpu", seed: int = 0) -> str:
    """Write a folder of that shape with bfloat16 weights, standard deviation 0.02; an existing one is kept."""
    from safetensors.torch import save_file

    folder = Path(path)
    if (folder / "config.json").exists():
        return str(folder)
    hf = {
        **SHAPES[shape], "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_act": "silu",
        "max_position_embeddings": 40960, "rope_theta": 1e6, "dtype": "bfloat16",
        "architectures": [ARCHITECTURES[SHAPES[shape]["model_type"]]],
    }  # fmt: skip
    dim, hidden, head = hf["hidden_size"], hf["intermediate_size"], hf["head_dim"]
    queries, keys = hf["num_attention_heads"] * head, hf["num_key_value_heads"] * head
    block = {
        "input_layernorm": (dim,), "post_attention_layernorm": (dim,), "self_attn.q_proj": (queries, dim),
        "self_attn.k_proj": (keys, dim), "self_attn.v_proj": (keys, dim), "self_attn.o_proj": (dim, queries),
        "mlp.gate_proj": (hidden, dim), "mlp.up_proj": (hidden, dim), "mlp.down_proj": (dim, hidden),
    }  # fmt: skip
    if hf["model_type"] == "qwen3":
        block |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    shapes = {"model.embed_tokens": (hf["vocab_size"], dim), "model.norm": (dim,)}
    for layer in range(hf["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": size for name, size in block.items()}
    torch.manual_seed(seed)
    tensors = {
        f"{name}.weight": torch.ones(size, dtype=torch.bfloat16)
        if len(size) == 1
        else (0.02 * torch.randn(size, device=device)).to(torch.bfloat16).cpu()
        for name, size in shapes.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf, indent=2) + "\n", encoding="utf-8")
    return str(folder)
