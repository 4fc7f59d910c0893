"""What `vs_trl.py` gives both sides: the model's folder, the prompts, the sizes. Also a model of a given shape with
random weights and any tokenizer.

    python -c "from vs_task import shaped_model; print(shaped_model('/tmp/qwen3'))"
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from forge_host.errors import UsageError

SYSTEM = "You are a calculator. Reply with the result only."
SEQ_LEN = {"cpu": 512, "cuda": 1024}


def smollm2() -> str:
    """The folder of SmolLM2-135M-Instruct, from its plugin."""
    from forge_host.config.model import resolve_model
    from forge_host.plugins import PluginHost

    return resolve_model("smollm2", PluginHost.load())()


def shaped_model(folder: Path | str) -> str:
    """Random bfloat16 weights in the shape of Qwen3-0.6B (151,936 tokens), with SmolLM2's tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    path, tokenizer = Path(folder), Path(smollm2())
    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=8192, rope_theta=1e6, tie_word_embeddings=True,
        **{k: json.loads((tokenizer / "config.json").read_text())[k] for k in ("bos_token_id", "eos_token_id")},
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(path)
    for file in tokenizer.glob("tokenizer*"):
        shutil.copyfile(file, path / file.name)
    return str(path)


def make_task(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """Sizes and settings; what the command line leaves open is chosen by device and kind."""
    cuda, learn = arguments.device == "cuda", arguments.learn
    warmup = arguments.warmup if arguments.warmup is not None else 0 if learn else 3 if cuda else 1
    prompts = arguments.prompts or (8 if learn else 64 if cuda else 4)
    total = prompts * arguments.samples
    return {
        "device": arguments.device, "model": model, "warmup": warmup, "prompts": prompts, "samples": arguments.samples,
        "steps": warmup + (arguments.steps or (200 if learn else 6 if cuda else 2)),
        "max_tokens": arguments.max_tokens or (24 if learn else 512 if cuda else 96), "seed": 0, "fixed": not learn,
        "reward": "math" if learn else "text_hash", "system": SYSTEM if learn else None,
        "learning_rate": 4e-5 if learn else 1e-6, "seq_len": 256 if learn else SEQ_LEN[arguments.device],
        "micro_batch": arguments.micro_batch or (total if learn or not cuda else 16), "gpu_share": 0.35,
        "trl_dtype": arguments.trl_dtype or ("float32" if learn or cuda else "bfloat16"),
        "checkpointing": arguments.checkpointing, "max_policy_age": arguments.max_policy_age,
        "compile": cuda and not learn, "micro_batch_tokens": 16384, "transport": _transport() if cuda else None,
    }  # fmt: skip


def _transport() -> str | None:
    """cuda-ipc where it is installed; None lets the run choose."""
    from forge_host.plugins import PluginHost

    found = [entry.ref for entry in PluginHost.load().entries("transport") if "cuda-ipc" in entry.ref]
    return found[0] if found else None


def records_of(data: Path, task: dict[str, Any], model: str) -> list[dict[str, str]]:
    """The first questions that leave room for the response, one for every prompt of the run.

    Raises:
        UsageError: the file is not there, or a line of it has no question or answer.
    """
    from transformers import AutoTokenizer

    from forge_host.builtin.jsonl import JsonLines

    tokenizer = AutoTokenizer.from_pretrained(model)
    room = task["seq_len"] - task["max_tokens"]
    found = []
    for prompt in JsonLines(path=str(data), prompt_field="question", target_field="answer"):
        chat = [{"role": "user", "content": prompt.text}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        if len(tokenizer(text)["input_ids"]) <= room:
            found.append({"prompt": str(prompt.text), "target": str(prompt.target)})
        if len(found) == task["prompts"] * task["steps"]:
            return found
    raise UsageError(f"{data} has {len(found)} usable questions, {task['prompts'] * task['steps']} are needed")


def arithmetic() -> list[dict[str, str]]:
    """The quickstart's questions."""
    from forge_host.builtin.arithmetic import Arithmetic

    dataset = Arithmetic(low=1, high=9)
    return [{"prompt": str(p.text), "target": str(p.target)} for p in (dataset[i] for i in range(4000))]
