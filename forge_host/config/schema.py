"""The configuration's sections and keys, as attrs classes; torch-free. Each field's help stands in its metadata.

    RunConfig(model="smollm2").training.batch_size     # 8

A component's own keys stand beside `use` (`dataset: {path: arithmetic, low: 1}`); they are validated against the
chosen component's fields, so `extra` collects them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import and_, ge, gt, in_, le, optional

from forge_host.types import Use, field

DTYPES = ("bfloat16", "float16", "float32")


@attrs.frozen(kw_only=True)
class DatasetConfig:
    """Prompts. `path` is a dataset component, a .jsonl file, a folder, or a hub name; its keys follow beside it."""

    path: str = field(default="arithmetic", help="dataset component, .jsonl file, folder or hub name")
    system: str | None = field(default=None, help="system message put before every prompt")
    chat: bool = field(
        default=True, help="wrap a plain-text prompt as a user message of the chat template; false feeds it as is"
    )
    max_prompt_tokens: int | None = field(default=None, help="longer prompts are left out and counted", unit="tokens")
    too_long: str = field(
        default="drop",
        help="SFT examples longer than training.seq_len: drop (and count) or truncate",
        validator=in_(("drop", "truncate")),
    )
    extra: Mapping[str, Any] = field(factory=dict, help="fields of the chosen dataset component")


@attrs.frozen(kw_only=True)
class TrainingConfig:
    """The optimizer and the loop."""

    batch_size: int = field(
        default=8, help="prompts per optimizer step; each gives n_samples responses", validator=ge(1)
    )
    gradient_accumulation_steps: int = field(
        default=1, help="micro-batches a step is split into; changes memory, not gradients", validator=ge(1)
    )
    micro_batch_tokens: int = field(
        default=16384,
        help="most tokens of one packed micro-batch, of many rows: seq_len bounds a row only. A small model on a GPU "
        "wants 16384 (four packs of 4,096) or more; memory is the limit",
        unit="tokens",
        validator=ge(1),
    )
    max_steps: int = field(default=100, help="optimizer steps", validator=ge(1))
    seq_len: int = field(
        default=2048, help="longest prompt + response; also the packing budget of a row", unit="tokens", validator=ge(2)
    )
    dtype: str = field(default="bfloat16", help="compute dtype of the forward and backward pass", validator=in_(DTYPES))
    param_dtype: str = field(
        default="float32", help="dtype of the trained weights and optimizer state", validator=in_(DTYPES)
    )
    learning_rate: float = field(default=1e-6, help="AdamW peak learning rate", validator=gt(0))
    adam_beta1: float = field(default=0.9, help="AdamW first-moment decay", validator=and_(ge(0), le(1)))
    adam_beta2: float = field(default=0.95, help="AdamW second-moment decay", validator=and_(ge(0), le(1)))
    weight_decay: float = field(default=0.0, help="AdamW weight decay", validator=ge(0))
    warmup_steps: int = field(default=0, help="linear learning-rate warm-up", unit="steps", validator=ge(0))
    lr_schedule: str = field(
        default="constant",
        help="constant, linear or cosine decay to 0 at max_steps",
        validator=in_(("constant", "linear", "cosine")),
    )
    max_grad_norm: float | None = field(
        default=1.0, help="global gradient norm is clipped to this; null is off", validator=optional(gt(0))
    )
    gradient_checkpointing: bool = field(default=False, help="recompute activations in the backward pass")
    compile: bool | None = field(
        default=None, help="torch.compile each transformer block (the first step takes longer); null is on a GPU"
    )
    entropy_coef: float = field(default=0.0, help="entropy bonus; replaces the algorithm's when given", validator=ge(0))
    sync_interval: int = field(default=1, help="publish weights every so many steps", unit="steps", validator=ge(1))
    max_policy_age: int = field(
        default=0, help="oldest weights a trained token may come from; 0 is synchronous", unit="steps", validator=ge(0)
    )
    off_by_n: int | None = field(default=None, help="torchforge's name of max_policy_age", validator=optional(ge(0)))
    seed: int = field(default=0, help="seed of data order, sampling and initialisation")
    deterministic: bool | None = field(
        default=None,
        help="the same seed draws the same responses, and without policy age the run repeats bit for bit; null is true "
        "where generators run on the CPU, false on a GPU, where a seed for every response slows sampling down",
    )
    verify_weight_sync: bool = field(
        default=False, help="compare a checksum of the generator's weights with the trainer's"
    )
    weight_sync_timeout: float = field(default=120.0, help="deadline of one weight sync", unit="s", validator=gt(0))


@attrs.frozen(kw_only=True)
class RoleConfig:
    """Chooses a component for a role (`generator`, `trainer`, `transport`, ...); its fields stand beside `use`."""

    use: str = field(help="component reference")
    extra: Mapping[str, Any] = field(factory=dict, help="fields of the chosen component")


@attrs.frozen(kw_only=True)
class RewardConfig:
    """How several rewards become one, and what an ungradable episode costs."""

    mode: str = field(default="mean", help="mean (weighted) or sum of the rewards", validator=in_(("mean", "sum")))
    gates: Mapping[str, float] = field(
        factory=dict,
        help="rewards that must reach a value, or all others count 0; `gate: true` in an entry of `rewards` means 1",
    )
    constant_after: int = field(
        default=20, help="warn when a reward was the same for all responses so long; 0 never", unit="steps",
        validator=ge(0),
    )  # fmt: skip
    timeout_s: float = field(default=10.0, help="deadline of one reward call", unit="s", validator=gt(0))
    max_reward_errors: float = field(
        default=0.5, help="fraction of a step's episodes that may fail to be graded", validator=and_(ge(0), le(1))
    )


@attrs.frozen(kw_only=True)
class ServiceConfig:
    """Processes of one role."""

    procs: int = field(default=1, help="processes (ranks) per replica", validator=ge(1))
    hosts: int | None = field(
        default=None,
        help="hosts per replica, over which procs are divided; null takes as few as its GPUs need",
        validator=optional(ge(1)),
    )
    num_replicas: int = field(default=1, help="independent copies that share the requests", validator=ge(1))
    with_gpus: bool | None = field(default=None, help="true needs GPUs, false forbids them, null takes what is there")
    gpus: tuple[int, ...] | None = field(
        default=None, help="ids of the GPUs to use, on every host; null lets the planner choose"
    )
    mesh_name: str | None = field(default=None, help="name of the process mesh in logs")
    colocate_with: str | None = field(default=None, help="role whose devices this one shares")
    router: Use = field(
        factory=lambda: Use("builtin/least-loaded"), help="router component: which replica a request goes to"
    )
    max_restarts: int = field(default=3, help="restarts of a dead replica before the run fails", validator=ge(0))
    max_concurrent_requests: int = field(default=256, help="requests in flight per replica; more wait", validator=ge(1))
    startup_timeout: float | None = field(
        default=None,
        help="a replica must be ready by then; null is monarch.startup_timeout",
        unit="s",
        validator=optional(gt(0)),
    )
    actor_memory_mb: int | None = field(
        default=None,
        help="most memory of one process on the host, held by the kernel (RLIMIT_DATA); a process over it is replaced",
        unit="MiB",
        validator=optional(ge(1)),
    )


@attrs.frozen(kw_only=True)
class ParallelismConfig:
    """How the trainer's processes split the model and the data; -1 for shard takes the processes that are left."""

    tensor_parallel_degree: int = field(default=1, help="processes that split each matrix", validator=ge(1))
    pipeline_parallel_degree: int = field(default=1, help="processes that split the layers", validator=ge(1))
    context_parallel_degree: int = field(default=1, help="processes that split the sequence", validator=ge(1))
    expert_parallel_degree: int = field(default=1, help="processes that split the experts", validator=ge(1))
    data_parallel_shard_degree: int = field(default=-1, help="processes that shard parameters (FSDP)")
    data_parallel_replicate_degree: int = field(default=1, help="copies of the sharded model", validator=ge(1))


@attrs.frozen(kw_only=True)
class MonarchConfig:
    """Deadlines of the runtime."""

    startup_timeout: float = field(default=600.0, help="a role must be ready by then", unit="s", validator=gt(0))
    call_timeout: float = field(default=1800.0, help="deadline of one remote call", unit="s", validator=gt(0))
    shutdown_timeout: float = field(default=10.0, help="a process is killed after that", unit="s", validator=gt(0))


@attrs.frozen(kw_only=True)
class PlacementConfig:
    """Which cores the roles on the CPU are bound to."""

    pin_cores: str = field(
        default="auto",
        help="bind trainer, generators and reference on the CPU to cores of their own: always, never, or auto (when "
        "they work at the same time, training.max_policy_age above 0, and there are enough)",
        validator=in_(("auto", "always", "never")),
    )


@attrs.frozen(kw_only=True)
class CheckpointConfig:
    """Saving and resuming."""

    interval: int = field(
        default=0, help="save every so many steps; 0 only at the end or on a failure", unit="steps", validator=ge(0)
    )
    keep: int = field(default=2, help="newest checkpoints kept", validator=ge(1))
    background: bool = field(
        default=True, help="write while training goes on, from a copy of the training state in CPU memory"
    )
    final: bool = field(default=False, help="save a resumable checkpoint when the run ends")
    export: bool = field(default=True, help="write the final weights in Hugging Face format to <run>/model")


@attrs.frozen(kw_only=True)
class RecordConfig:
    """The rollout record: what is written of every response, and how much of it is kept."""

    token_ids: bool = field(default=False, help="write the token ids of prompt and response")
    logprobs: bool = field(default=False, help="write the log-probability of every sampled token")
    batches: bool = field(default=False, help="write every step's training batch to batches/, for run --replay")
    part_mb: float = field(
        default=64.0, help="size at which a file is closed and compressed", unit="MB", validator=gt(0)
    )
    max_mb: float = field(
        default=2000.0, help="most that closed files take together; the first and the newest are kept", unit="MB",
        validator=gt(0),
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class EvaluationConfig:
    """Held-out prompts, graded by the run's rewards. Without `dataset` the training prompts are used: no test."""

    interval: int = field(default=0, help="evaluate every so many steps; 0 is off", unit="steps", validator=ge(0))
    num_prompts: int = field(default=64, help="prompts, the first of the dataset", validator=ge(1))
    n_samples: int = field(default=1, help="sampled responses per prompt; 0 is off", validator=ge(0))
    temperature: float = field(default=1.0, help="softmax temperature of the sampled responses", validator=gt(0))
    greedy: bool = field(default=True, help="also one greedy response per prompt")
    solved_at: float = field(default=1.0, help="a reward of at least this is solved in pass@k")
    dataset: Mapping[str, Any] = field(factory=dict, help="keys that replace the dataset section's, as split: test")


@attrs.frozen(kw_only=True)
class RunConfig:
    """One run, resolved: what `config show` prints and `config.resolved.yaml` holds."""

    model: str = field(help="model component, local Hugging Face folder, or hub name")
    algorithm: str = field(default="grpo", help="algorithm preset; its section has its name")
    algorithm_config: Mapping[str, Any] = field(factory=dict, help="keys of the algorithm's section")
    loss: Use | None = field(default=None, help="replaces the algorithm's loss")
    advantage: Use | None = field(default=None, help="replaces the algorithm's advantage estimator")
    sampler: Use | None = field(default=None, help="replaces the algorithm's sampler")
    aggregation: Mapping[str, Any] = field(factory=dict, help="replaces keys of the algorithm's aggregation")
    kl: Mapping[str, Any] = field(factory=dict, help="replaces keys of the algorithm's KL")
    correction: Mapping[str, Any] = field(factory=dict, help="replaces keys of the algorithm's importance correction")
    sampling: Mapping[str, Any] = field(factory=dict, help="replaces keys of the algorithm's sampling parameters")
    dataset: DatasetConfig = field(factory=DatasetConfig, help="prompts")
    environment: Use | None = field(
        default=None, help="multi-turn task that asks the model and answers it; null is one reply a prompt"
    )
    rewards: tuple[tuple[Use, float], ...] = field(
        default=((Use("math"), 1.0), (Use("thinking"), 1.0)),
        help="reward components with their weights; torchforge's two unless given",
    )
    reward: RewardConfig = field(factory=RewardConfig, help="reward composition")
    training: TrainingConfig = field(factory=TrainingConfig, help="optimizer and loop")
    generator: RoleConfig = field(factory=lambda: RoleConfig(use="vllm"), help="generator component")
    trainer: RoleConfig = field(factory=lambda: RoleConfig(use="titan"), help="trainer component")
    transport: RoleConfig = field(factory=lambda: RoleConfig(use="auto"), help="weight-sync transport")
    launcher: RoleConfig = field(factory=lambda: RoleConfig(use="local"), help="where processes run")
    trackers: tuple[Use, ...] = field(default=(Use("console"), Use("jsonl")), help="metric sinks")
    services: Mapping[str, ServiceConfig] = field(
        factory=dict, help="processes per role: generator, trainer, ref_model, reward"
    )
    parallelism: ParallelismConfig = field(factory=ParallelismConfig, help="the trainer's parallelism")
    placement: PlacementConfig = field(factory=PlacementConfig, help="cores of the roles on the CPU")
    monarch: MonarchConfig = field(factory=MonarchConfig, help="runtime deadlines")
    checkpoint: CheckpointConfig = field(factory=CheckpointConfig, help="saving")
    evaluation: EvaluationConfig = field(factory=EvaluationConfig, help="held-out evaluation")
    record: RecordConfig = field(factory=RecordConfig, help="rollout record")
    run_dir: str = field(default="runs", help="folder that run directories are made in")
    name: str = field(default="", help="name of the run; empty takes the config file's")
    plugins: tuple[str, ...] | None = field(default=None, help="plugins to load; null loads every installed one")
    no_plugins: tuple[str, ...] = field(default=(), help="plugins that are not imported")
    plugin_files: tuple[str, ...] = field(default=(), help="one-file plugins to load")
