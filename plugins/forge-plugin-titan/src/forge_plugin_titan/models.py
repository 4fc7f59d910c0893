"""From a Hugging Face folder's config.json to TorchTitan's model configuration.

A family is one entry of `FAMILIES`: its TorchTitan classes, its rotary embedding, and the config keys it cannot honour.

    spec = read_model("/models/SmolLM2-135M-Instruct", seq_len=2048, attention=BlockAttention.Config())
    model = spec.config.build()
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from forge_host.errors import UsageError
from forge_plugin_titan import lora
from forge_plugin_titan.config import TitanConfig


@attrs.frozen(kw_only=True)
class ModelSpec:
    """A model TorchTitan can build: `config.build()`, `adapter(config, path)`, `parallelize(model, ...)`."""

    family: str
    path: str
    config: Any
    adapter: Callable[..., Any]
    parallelize: Callable[..., Any]
    tied: bool
    vocab_size: int
    lora_scaling: float = 0.0
    seed: int = 0

    @property
    def adapters(self) -> bool:
        return self.lora_scaling != 0.0


def _llama() -> tuple[Any, ...]:
    from torchtitan.models.llama3 import Llama3Model, Llama3StateDictAdapter, Llama3TransformerBlock, parallelize_llama

    from forge_plugin_titan.tiles import TiledRoPE

    return Llama3Model, Llama3TransformerBlock, Llama3StateDictAdapter, parallelize_llama, TiledRoPE


def _qwen3() -> tuple[Any, ...]:
    from torchtitan.models.common import CosSinRoPE
    from torchtitan.models.qwen3 import Qwen3Model, Qwen3TransformerBlock, parallelize_qwen3
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

    return Qwen3Model, Qwen3TransformerBlock, Qwen3StateDictAdapter, parallelize_qwen3, CosSinRoPE


#: model_type of config.json: loader of the classes, whether queries and keys are normed, rotary scalings.
FAMILIES: Mapping[str, tuple[Callable[[], tuple[Any, ...]], bool, tuple[str, ...]]] = {
    "llama": (_llama, False, ("default", "llama3")),
    "qwen3": (_qwen3, True, ("default",)),
}


def read_config(path: str) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        UsageError: no folder, no config.json, or not JSON.
    """
    file = Path(path) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{file} is missing", fix="set model to a Hugging Face folder or a model component") from error
    except (ValueError, NotADirectoryError) as error:
        raise UsageError(f"{file} cannot be read: {error}", fix="download the model again") from error
    assert isinstance(config, dict)
    return config


def read_model(
    path: str, *, seq_len: int, attention: Any, fuse_qkv: bool = False, settings: TitanConfig | None = None,
    seed: int = 0,
) -> ModelSpec:  # fmt: skip
    """TorchTitan's configuration of the model in a local Hugging Face folder, its parameters left uninitialised.

    Args:
        seq_len: longest sequence, in tokens; sizes the rotary tables.
        attention: configuration of the inner attention.
        fuse_qkv: one matrix for queries, keys and values.
        settings: adapters; none when it is None.
        seed: of the adapters' initial values.

    Raises:
        UsageError: an unsupported family or setting, or `seq_len` beyond what the model was made for.
    """
    hf = read_config(path)
    kind = str(hf.get("model_type"))
    if kind not in FAMILIES:
        raise UsageError(
            f"the titan trainer cannot train model_type {kind!r}",
            where=f"{path}/config.json",
            fix=f"supported: {', '.join(sorted(FAMILIES))} (dense), which covers Llama 2-3.x, SmolLM2 and Qwen3",
        )
    load, qk_norm, scalings = FAMILIES[kind]
    _check(path, hf, seq_len, scalings)
    model_cls, block_cls, adapter, parallelize, rope_cls = load()
    from torchtitan.models.common import Embedding, Linear
    from torchtitan.models.common.config_utils import make_gqa_config
    from torchtitan.models.common.param_init import skip_param_init

    from forge_plugin_titan.head import LogprobHead
    from forge_plugin_titan.tiles import TiledFeedForward, TiledRMSNorm

    # Weights always come from the checkpoint: drawing them first would only cost time.
    skip = {"weight": skip_param_init}
    dim, heads, vocab = hf["hidden_size"], hf["num_attention_heads"], hf["vocab_size"]
    hidden = hf["intermediate_size"]
    head_dim = hf.get("head_dim") or dim // heads

    def norm(size: int) -> Any:
        return TiledRMSNorm.Config(normalized_shape=size, eps=hf.get("rms_norm_eps", 1e-6), param_init=skip)

    def linear(size: int, to: int) -> Any:
        return Linear.Config(in_features=size, out_features=to, param_init=skip)

    def block() -> Any:  # a configuration of its own for every layer: TorchTitan writes shardings into them
        gqa = make_gqa_config(
            dim=dim, n_heads=heads, n_kv_heads=hf.get("num_key_value_heads") or heads, head_dim=head_dim,
            wqkv_param_init=skip, wo_param_init=skip, inner_attention=dataclasses.replace(attention), fuse_qkv=fuse_qkv,
            rope=rope_cls.Config(dim=head_dim, max_seq_len=seq_len, **_rope(hf)),
            qk_norm=norm(head_dim) if qk_norm else None,
        )  # fmt: skip
        if fuse_qkv:
            gqa.qkv_linear.wqkv.param_init = skip
        return block_cls.Config(
            attention_norm=norm(dim), ffn_norm=norm(dim), attention=gqa,
            feed_forward=TiledFeedForward.Config(
                w1=linear(dim, hidden), w2=linear(hidden, dim), w3=linear(dim, hidden)
            ),
        )  # fmt: skip

    tied = bool(hf.get("tie_word_embeddings", False))
    config = model_cls.Config(
        dim=dim, vocab_size=vocab, enable_weight_tying=tied, norm=norm(dim),
        tok_embeddings=Embedding.Config(num_embeddings=vocab, embedding_dim=dim, param_init=skip),
        lm_head=LogprobHead.Config(in_features=dim, out_features=vocab, param_init=skip),
        layers=[block() for _ in range(hf["num_hidden_layers"])],
    )  # fmt: skip
    settings = settings or TitanConfig()
    return ModelSpec(
        family=kind, path=path, config=lora.with_adapters(config, settings), adapter=adapter, parallelize=parallelize,
        tied=tied, vocab_size=vocab, lora_scaling=lora.scaling(settings), seed=seed,
    )  # fmt: skip


def _check(path: str, hf: Mapping[str, Any], seq_len: int, scalings: tuple[str, ...]) -> None:
    where = f"{path}/config.json"
    for key, wanted in (("attention_bias", False), ("mlp_bias", False), ("use_sliding_window", False)):
        if hf.get(key, wanted) != wanted:
            raise UsageError(f"the titan trainer cannot train a model with {key}: {hf[key]}", where=where)
    if hf.get("hidden_act", "silu") != "silu":
        raise UsageError(f"the titan trainer cannot train a model with hidden_act {hf['hidden_act']!r}", where=where)
    scaling = _rope_parameters(hf).get("rope_type", "default")
    if scaling not in scalings:
        raise UsageError(
            f"the titan trainer cannot train a model with rope_type {scaling!r}",
            where=where, fix=f"supported for {hf['model_type']}: {', '.join(scalings)}",
        )  # fmt: skip
    limit = hf.get("max_position_embeddings")
    if limit is not None and seq_len > limit:
        raise UsageError(
            f"training.seq_len is {seq_len}, the model was made for {limit} tokens",
            where=where, fix=f"set training.seq_len to at most {limit}",
        )  # fmt: skip


def _rope_parameters(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings in one form: transformers 5 has `rope_parameters`, older ones `rope_theta` and `rope_scaling`."""
    found = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    found.setdefault("rope_theta", hf.get("rope_theta", 10000.0))
    found.setdefault("rope_type", found.get("type", "default"))
    return found


def _rope(hf: Mapping[str, Any]) -> dict[str, Any]:
    rope = _rope_parameters(hf)
    out: dict[str, Any] = {"theta": float(rope["rope_theta"])}
    if rope["rope_type"] == "llama3":
        out |= {
            "scaling": "llama",
            "scaling_factor": rope["factor"],
            "low_freq_factor": rope["low_freq_factor"],
            "high_freq_factor": rope["high_freq_factor"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        }
    return out
