"""Old names of torchforge and what they are here; the tests resolve every new name.

page()
"""

from __future__ import annotations

from typing import Literal

import attrs

from forge_host.docs.markdown import code, table

#: How the tests check the new name: import it, resolve it as configuration, run it, or find a component.
Check = Literal["import", "config", "command", "component", "text"]


@attrs.frozen
class Moved:
    """One name of torchforge.

    Args:
        old: as torchforge writes it.
        new: what to write here.
        check: how `new` is verified.
        note: what differs, if anything does.
    """

    old: str
    new: str
    check: Check
    note: str = ""


COMMANDS = (
    Moved("conda create -n forge python=3.12", "make setup", "text", "makes `.venv`; Python 3.11 or newer"),
    Moved("./scripts/install.sh", "make setup", "text", "CUDA or CPU builds, by what the machine has"),
    Moved("./scripts/install_rocm.sh", "make setup", "text", "there is no ROCm build yet: it installs the CPU's"),
    Moved('python -c "import torch, forge, vllm"', "forge-host plugins doctor", "command"),
    Moved("python -m apps.grpo.main --config FILE", "forge-host run FILE", "command", "the file works unchanged"),
    Moved("python -m apps.grpo.main --config apps/grpo/qwen3_1_7b.yaml", "forge-host run quickstart", "command",
          "a recipe that runs on any machine"),
    Moved("python -m apps.sft.main --config apps/sft/llama3_8b.yaml", "forge-host sft sft_llama3_8b", "command"),
    Moved("sbatch --nodes=2 --gpus-per-node=8 run_grpo.sh", "sbatch contrib/slurm/forge.sbatch CONFIG", "text",
          "or from outside a job `forge-host run CONFIG --set launcher=slurm`"),
    Moved("export TORCHSTORE_USE_RDMA=1", "forge-host run quickstart --set transport.use=rdma", "command",
          "or `torchstore`; `auto` takes the fastest that reaches every generator"),
    Moved("--trainer.procs 4 --generator.procs 4", "forge-host run FILE --generator.procs 4", "command",
          "any key, also `--set a.b=c`"),
    Moved("apps/custom/main.py", "forge-host run FILE --set loss=./custom_loss.py:CustomLoss", "command",
          "the host calls the loss; there is no loop to copy"),
)  # fmt: skip
CLASSES = (
    Moved("forge.data.rewards.MathReward", "forge_plugin_math.reward:MathReward", "import",
          "in a configuration: `math`; `compat: torchforge` gives its values"),
    Moved("forge.data.rewards.ThinkingReward", "forge_plugin_math.structure:ThinkingReward", "import",
          "in a configuration: `thinking`"),
    Moved("class CustomMathReward (prompt, response, target)", "./rewards.py:CustomMathReward", "text",
          "unchanged: `--set rewards=./rewards.py:CustomMathReward`"),
    Moved("class CustomLoss (nn.Module)", "./custom_loss.py:CustomLoss", "text",
          "unchanged: `--set loss=./custom_loss.py:CustomLoss`"),
    Moved("forge.losses.SimpleGRPOLoss", "forge_host.losses:SimpleGRPOLoss", "import",
          "in a configuration: `loss: {use: simple-grpo, beta: 0.1}`"),
    Moved("forge.losses.ReinforceLoss", "forge_host.losses:ReinforceLoss", "import"),
    Moved("forge.losses.reinforce_loss.ReinforceLoss", "forge_host.losses.reinforce_loss:ReinforceLoss", "import",
          "`clip_ratio` too; in a configuration `algorithm: reinforce`"),
    Moved("GRPO", "grpo", "component"), Moved("DAPO", "dapo", "component"), Moved("CISPO", "cispo", "component"),
    Moved("GSPO", "gspo", "component"), Moved("SAPO", "sapo", "component"),
    Moved("Episode", "forge_host.api:Episode", "import", "frozen; `Group` likewise"),
    Moved("Group", "forge_host.api:Group", "import"),
    Moved("Completion (text, token_ids, logprobs, metadata)", "forge_host.api:Completion", "import",
          "also the prompt's tokens, the policy version of every token, the reason it ended"),
    Moved("ForgeActor, options, as_actor, as_service, launch, shutdown", "forge_host.api:ForgeActor", "import"),
    Moved("service.method.route, .fanout, call_all, session(), get_metrics_summary",
          "forge_host.runtime.service:Service", "import", "`health_check` and `restart` too"),
    Moved("trainer.train_step(inputs, targets) -> float", "forge_host.api:Trainer", "import",
          "the batch keeps its form; `targets` also have generator_logprobs"),
)  # fmt: skip
KEYS = (
    Moved("model", "model: smollm2", "config", "hub name, folder or model component"),
    Moved("dataset.path", "dataset: {path: train.jsonl}", "config", "a hub name needs forge-plugin-datasets"),
    Moved("dataset.split, dataset.streaming", "dataset: {path: openai/gsm8k, split: train, streaming: true}", "config"),
    Moved("training.batch_size", "training: {batch_size: 4}", "config", "prompts a step; n_samples responses each"),
    Moved("training.learning_rate", "training: {learning_rate: 1e-6}", "config"),
    Moved("training.seq_len", "training: {seq_len: 4096}", "config"),
    Moved("training.dtype", "training: {dtype: bfloat16}", "config", "weights stay float32: `param_dtype`"),
    Moved("training.gradient_accumulation_steps", "training: {gradient_accumulation_steps: 4}", "config"),
    Moved("training.sync_interval", "training: {sync_interval: 10, max_policy_age: 9}", "config",
          "tokens get up to nine steps old, which the second key allows"),
    Moved("training.entropy_coef", "training: {entropy_coef: 0.01}", "config"),
    Moved("off_by_n", "training: {off_by_n: 1}", "config", "the newer name is `max_policy_age`"),
    Moved("grpo.n_samples", "grpo: {n_samples: 8}", "config"),
    Moved("grpo.clip_low, grpo.clip_high", "grpo: {clip_low: 0.2, clip_high: 0.28}", "config"),
    Moved("grpo.beta", "grpo: {beta: 0.1}", "config", "0 starts no reference model"),
    Moved("grpo.temperature", "grpo: {temperature: 0.7}", "config"),
    Moved("services.generator, trainer, ref_model",
          "services: {trainer: {procs: 1, num_replicas: 1, with_gpus: false}}", "config"),
    Moved("services.NAME.hosts, mesh_name", "services: {trainer: {mesh_name: train}}", "config"),
    Moved("ref_model.with_gpus: false (top level)", "ref_model: {with_gpus: false}", "config"),
    Moved("parallelism.tensor_parallel_degree", "parallelism: {tensor_parallel_degree: 1}", "config"),
    Moved("parallelism.pipeline_parallel_degree", "parallelism: {pipeline_parallel_degree: 1}", "config"),
    Moved("parallelism.data_parallel_shard_degree", "parallelism: {data_parallel_shard_degree: 1}", "config"),
    Moved("W&B dashboard", "trackers: [console, jsonl, wandb]", "config", "and `report.html` without any account"),
)  # fmt: skip
INTRO = """\
# From torchforge

Every class, key and command of torchforge has its place here; the tests import, resolve or run what stands under
"here".
"""


def page() -> str:
    """`migration.md`."""
    out = [INTRO]
    for title, moved in (("Commands", COMMANDS), ("Classes and functions", CLASSES), ("Configuration keys", KEYS)):
        rows = [(code(m.old), code(m.new), m.note) for m in moved]
        out.append(f"## {title}\n\n{table(('torchforge', 'here', 'what differs'), rows)}")
    out.append("Every symptom of torchforge's troubleshooting list is in [troubleshooting](troubleshooting.md).\n")
    return "\n".join(out)
