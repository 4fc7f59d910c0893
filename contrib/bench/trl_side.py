"""TRL's side of `vs_trl.py`: GRPOTrainer on a task file, in a process of its own; writes its result after every step.

    python contrib/bench/trl_side.py TASK.json RESULT.json

The result: `began` and `ends` (seconds of time.time()), `tokens` (generated), `rewards`, `useful` (tokens that are not
padding over those that went through the model). HF generate on a CPU, colocated vLLM on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def rewards_of(task: dict[str, Any]) -> Any:
    """TRL's reward function, by the same code that grades on forge-host's side."""
    if task["reward"] == "math":
        from forge_plugin_math.reward import MathReward

        grade = MathReward()

        def score(text: str, target: str) -> float | None:
            found = grade(text, target)
            return found if found is None or isinstance(found, float) else found.value
    else:
        from vs_reward import text_hash

        def score(text: str, target: str) -> float | None:
            return text_hash(text)

    def reward(completions: list[Any], target: list[str], **_: Any) -> list[float | None]:
        return [score(c[0]["content"], t) for c, t in zip(completions, target, strict=True)]

    return reward


def settings(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of GRPOConfig."""
    total, micro = task["prompts"] * task["samples"], task["micro_batch"]
    cpu = task["device"] == "cpu"
    chosen: dict[str, Any] = {
        "output_dir": str(folder / "trl"), "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": total // micro, "num_generations": task["samples"],
        "max_completion_length": task["max_tokens"], "temperature": 1.0, "top_p": 1.0, "top_k": 0,
        "max_steps": task["steps"], "learning_rate": task["learning_rate"], "lr_scheduler_type": "constant",
        "adam_beta1": 0.9, "adam_beta2": 0.95, "max_grad_norm": 1.0, "beta": 0.0, "bf16": True,
        "model_init_kwargs": {"dtype": task["trl_dtype"]}, "gradient_checkpointing": task["checkpointing"],
        "use_cpu": cpu, "save_strategy": "no", "report_to": "none", "logging_steps": 1, "shuffle_dataset": False,
        "seed": task["seed"], "disable_tqdm": True,
    }  # fmt: skip
    if cpu:
        # A response that ends early would make a shorter step than the other side's.
        chosen["generation_kwargs"] = {"min_new_tokens": task["max_tokens"]} if task["fixed"] else None
    else:
        chosen |= {
            "use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": task["seq_len"],
            "vllm_gpu_memory_utilization": task["gpu_share"],
            "generation_kwargs": {"ignore_eos": True} if task["fixed"] else None,
        }  # fmt: skip
    return chosen


def main(task: dict[str, Any], out: Path) -> None:
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    result: dict[str, Any] = {"began": 0.0, "ends": [], "tokens": [], "rewards": [], "useful": 0.0}
    seen = {"tokens": 0, "useful": 0}

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(self, model: Any, ids: Any, mask: Any, *args: Any, **kw: Any) -> Any:
            seen["tokens"] += mask.numel()
            seen["useful"] += int(mask.sum())
            return super()._get_per_token_logps_and_entropies(model, ids, mask, *args, **kw)

    class Times(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            result["began"] = time.time()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs is None or "reward" not in logs:
                return
            result["ends"].append(time.time())
            result["rewards"].append(float(logs["reward"]))
            result["tokens"].append(float(logs["completions/mean_length"]) * task["prompts"] * task["samples"])
            result["useful"] = seen["useful"] / max(seen["tokens"], 1)
            out.with_suffix(".tmp").write_text(json.dumps(result))
            os.replace(out.with_suffix(".tmp"), out)

    system = [{"role": "system", "content": task["system"]}] if task["system"] else []
    records = [json.loads(line) for line in Path(task["data"]).read_text().splitlines()]
    dataset = Dataset.from_list(
        [{"prompt": [*system, {"role": "user", "content": r["prompt"]}], "target": r["target"]} for r in records]
    )
    trainer = Trainer(
        model=task["model"], reward_funcs=rewards_of(task), args=GRPOConfig(**settings(task, out.parent)),
        train_dataset=dataset, callbacks=[Times()],
        processing_class=AutoTokenizer.from_pretrained(task["model"], padding_side="left"),
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
