"""A llama of 2 layers with random weights and a letter tokenizer, and its log-probabilities by transformers.

folder = write_tiny_llama(tmp_path)
logprobs(folder, weights, prompt_ids, token_ids)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 512
END = 1


def write_tiny_llama(folder: Path) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=0, eos_token_id=END,
        initializer_range=0.15, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    vocabulary = {f"w{i}": i for i in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w0", eos_token="w1").save_pretrained(folder)
    return str(folder)


def read_weights(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def changed(weights: Mapping[str, torch.Tensor], seed: int, only: str = "") -> dict[str, torch.Tensor]:
    """The weights with noise as large as themselves on those whose name contains `only`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) if only in name else tensor
        for name, tensor in weights.items()
    }


def logprobs(
    folder: str,
    weights: Mapping[str, torch.Tensor],
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    temperature: float = 1.0,
) -> torch.Tensor:
    """Nats of each response token under the model with these weights. [T] float32"""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(dict(weights), strict=False)
    model.tie_weights()
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt_ids) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
