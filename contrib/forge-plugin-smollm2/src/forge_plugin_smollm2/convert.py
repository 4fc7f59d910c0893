"""GGUF of a Llama-shaped model to a Hugging Face folder, with numpy only (no torch, no transformers).

Why not `transformers.from_pretrained(gguf_file=...)`: it builds the model in torch only to save it again, and its
output changes with the transformers release; here the folder depends on the GGUF file alone.

    convert(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), Path("folder"))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forge_host.api import PluginError

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3  # llama.cpp's token type of special tokens


def convert(source: Path, folder: Path) -> None:
    """Writes the configuration, the tokenizer and model.safetensors (bfloat16). PluginError if the file is not fit."""
    try:
        reader = gguf.GGUFReader(str(source))
    except (OSError, ValueError) as error:
        raise PluginError(f"not a readable GGUF file ({error})", where=str(source)) from error
    values = {name: field.contents() for name, field in reader.fields.items()}
    if values.get("general.architecture") != "llama" or values.get("tokenizer.ggml.model") != "gpt2":
        raise PluginError("GGUF file is not a Llama-shaped model with a byte-level BPE tokenizer", where=str(source))
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _config(values, tied))
    token_ids = {f"{name}_token_id": values[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    _write_json(folder / "generation_config.json", {**token_ids, "pad_token_id": _pad(values)})
    _write_json(folder / "tokenizer.json", _tokenizer(values))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(values))
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        name, array = hf_name(tensor.name), gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            key = "head_count" if ".attn_q." in tensor.name else "head_count_kv"
            array = unpermute(array, values[f"llama.attention.{key}"])
        tensors[name] = to_bfloat16(array)
    write_safetensors(folder / "model.safetensors", tensors)


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{TOP_NAMES[parts[0]]}.{parts[1]}"


def unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp stores query and key rows with rotary pairs interleaved; Hugging Face wants the two halves apart."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16 (uint16), rounded to nearest even. Finite input only."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """bfloat16 bits (uint16) as a .safetensors file: header length (u64), JSON header, data.

    By hand because numpy has no bfloat16, so the library's numpy writer cannot, and torch would be a heavy dependency.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data starts aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.astype("<u2", copy=False).tobytes())


def _pad(values: dict[str, Any]) -> int:
    return int(values.get("tokenizer.ggml.padding_token_id", values["tokenizer.ggml.eos_token_id"]))


def _config(values: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads, width = values["llama.attention.head_count"], values["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": _pad(values),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": values["llama.feed_forward_length"],
        "max_position_embeddings": values["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": values["llama.block_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{values['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored as float32
        "rope_theta": float(values["llama.rope.freq_base"]),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": values["llama.vocab_size"],
    }


def _special(values: dict[str, Any]) -> dict[int, str]:
    kinds = values["tokenizer.ggml.token_type"]
    return {i: token for i, token in enumerate(values["tokenizer.ggml.tokens"]) if kinds[i] == CONTROL_TOKEN}


def _tokenizer(values: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of SmolLM2: digits one by one, then GPT-2's byte-level split, then BPE."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in _special(values).items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(values["tokenizer.ggml.tokens"])},
            "merges": values["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(values: dict[str, Any]) -> dict[str, Any]:
    tokens = values["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[values["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[values["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[values["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[_pad(values)],
        "additional_special_tokens": [tokens[1], tokens[2]],
        "model_max_length": values["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": values["tokenizer.chat_template"],
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
