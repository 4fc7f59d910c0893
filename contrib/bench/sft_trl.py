"""Tokens a second of `forge-host sft` and of TRL's SFTTrainer: same examples, model and batches, one after the other.

    pip install trl accelerate
    python contrib/bench/sft_trl.py --data gsm8k/train.jsonl --examples 48

Both train one epoch, 8 examples a step, loss on the answer only, in bfloat16 over float32 weights (--dtype float32:
in float32). A rate is the examples' own tokens, padding not counted, over the time of all steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH = 8


def forge_host(folder: Path, model: str, data: Path, examples: int, dtype: str) -> dict[str, float]:
    config = {
        "name": "bench", "model": model, "algorithm": "sft", "dataset": {"path": str(data), "limit": examples},
        "training": {"batch_size": BATCH, "max_steps": examples // BATCH, "seq_len": 1024, "dtype": dtype,
                     "learning_rate": 1e-5},
        "checkpoint": {"export": False}, "run_dir": str(folder),
    }  # fmt: skip
    (folder / "bench.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "forge_host.cli.main", "sft", str(folder / "bench.yaml"), "--quiet"]
    subprocess.run([*command, "--run-dir", str(folder / "run")], check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line)["metrics"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    tokens, seconds = (sum(step[key] for step in steps) for key in ("tokens/packed", "time/step_s"))
    return {"tokens": tokens, "seconds": seconds, "loss": steps[-1]["train/loss"]}


def trl(folder: Path, model: str, data: Path, examples: int, dtype: str) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.seconds, self.began = 0.0, 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds += time.perf_counter() - self.began

    records = [json.loads(line) for line in data.read_text().splitlines()[:examples]]
    asked = [[{"role": "user", "content": r["question"]}] for r in records]
    answered = [[{"role": "assistant", "content": r["answer"]}] for r in records]
    tokenizer, times = AutoTokenizer.from_pretrained(model), Times()
    chats = [a + b for a, b in zip(asked, answered, strict=True)]
    whole = [tokenizer.apply_chat_template(chat, tokenize=False).rstrip() for chat in chats]
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in whole)
    cpu = not torch.cuda.is_available()
    config = SFTConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=BATCH, num_train_epochs=1, learning_rate=1e-5,
        max_length=1024, bf16=dtype == "bfloat16", use_cpu=cpu, gradient_checkpointing=False, save_strategy="no",
        report_to="none", logging_steps=1, lr_scheduler_type="constant", model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    dataset = Dataset.from_dict({"prompt": asked, "completion": answered})
    trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, callbacks=[times])
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"tokens": tokens, "seconds": times.seconds, "loss": losses[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="JSON Lines with question and answer")
    parser.add_argument("--model", default="", help="Hugging Face folder; default: SmolLM2-135M-Instruct of its plugin")
    parser.add_argument("--examples", type=int, default=48)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    arguments = parser.parse_args()
    from forge_host.config.model import resolve_model
    from forge_host.plugins import PluginHost

    model = resolve_model(arguments.model or "smollm2", PluginHost.load())()
    rates = {}
    for run in (forge_host, trl):
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder), model, arguments.data, arguments.examples, arguments.dtype)
        rates[run.__name__] = found["tokens"] / found["seconds"]
        print(f"{run.__name__}: {found['tokens']:.0f} tokens in {found['seconds']:.1f} s, "
              f"{rates[run.__name__]:.0f} tokens/s, last loss {found['loss']:.3f}", flush=True)  # fmt: skip
    print(f"forge_host / trl: {rates['forge_host'] / rates['trl']:.2f}")


if __name__ == "__main__":
    main()
