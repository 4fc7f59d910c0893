"""The one module a plugin imports: markers, records, protocols, errors, and (on first use) `ForgeActor`.

    from forge_host.api import ComponentSpec, hookimpl

    FORGE_API = "1.0"

    @hookimpl
    def forge_rewards(host):
        yield ComponentSpec("brevity", "my_pkg.reward:Brevity", "shorter replies score higher")

Importing it loads neither torch nor monarch. Protocols say what the host calls; a component does not subclass them.
Shapes: B rows (one response each), T response tokens, padded; see `padding_mask`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import pluggy

from forge_host._version import API_VERSION
from forge_host.errors import ForgeError, PluginError, RunError, UsageError
from forge_host.toolcalls import ToolCall, tool_calls
from forge_host.types import (
    AGGREGATIONS,
    KINDS,
    KL,
    KL_ESTIMATORS,
    Aggregation,
    AlgorithmParts,
    CommandSpec,
    Completion,
    ComponentSpec,
    Correction,
    Episode,
    Finding,
    Group,
    HostInfo,
    Kind,
    Prompt,
    RewardResult,
    RunInfo,
    SamplingParams,
    StepReport,
    Use,
    Verdict,
    field,
    outcome,
)  # fmt: skip

if TYPE_CHECKING:
    import torch

    from forge_host.hookspecs import ForgePlugin
    from forge_host.loop.checksum import tensor_digest, weights_digest
    from forge_host.runtime.actor import ForgeActor
    from forge_host.runtime.hosts import Host
    from forge_host.runtime.launch import Allocation

hookimpl = pluggy.HookimplMarker("forge_host")

#: The tensors a loss may name as keyword arguments (design: "Call by name, take what you need").
LOSS_ARGUMENTS = (
    "logprobs", "old_logprobs", "generator_logprobs", "ref_logprobs", "advantages", "padding_mask", "entropy",
    "response", "lengths", "group_ids", "rewards",
)  # fmt: skip
#: What an advantage estimator may name. `token_kl` [B, T], beta included, is there when the KL is placed in the reward.
ADVANTAGE_ARGUMENTS = ("rewards", "group_ids", "lengths", "padding_mask", "token_kl")
#: What a reward may name.
REWARD_ARGUMENTS = (
    "prompt", "response", "target", "messages", "metadata", "completion", "length", "max_tokens", "finish_reason",
)  # fmt: skip


class Loss(Protocol):
    """Per-token loss. Any callable (attrs class, function, `torch.nn.Module`) whose arguments are LOSS_ARGUMENTS.

    Returns [B, T] float per-token losses that the host aggregates over the whole step, a `LossOutput`
    (`forge_host.rl`) when it also reports its ratio, or a scalar (the micro-batch's mean over its valid tokens).
    Padding is already replaced by 0 in every tensor it gets.
    """

    def __call__(self, **tensors: torch.Tensor) -> Any: ...


class Advantage(Protocol):
    """Rewards [B] float64 and group_ids [B] int64 to advantages, [B] or [B, T] float64; see ADVANTAGE_ARGUMENTS."""

    def __call__(self, **tensors: torch.Tensor) -> torch.Tensor: ...


class Reward(Protocol):
    """A score for one response; plain or async; arguments: REWARD_ARGUMENTS. None means it cannot be graded."""

    def __call__(self, **values: Any) -> float | RewardResult | None: ...


@runtime_checkable
class Sampler(Protocol):
    """Decides which scored groups are trained on."""

    def verdict(self, group: Group) -> Verdict: ...


@runtime_checkable
class Dataset(Protocol):
    """Tasks in a stable order. `fingerprint` identifies the content.

    One that learns which prompts are worth giving may also have `observe(group)`, told of every scored group;
    `wants(prompt, draw)`, False to pass a prompt over this time (`draw` is uniform in [0, 1)); `state_dict()` and
    `load_state_dict(state)`, plain data that checkpoints keep; and `metrics()`. See the dataset `curriculum`.
    """

    def __iter__(self) -> Iterator[Prompt]: ...

    def fingerprint(self) -> str: ...


class Generate(Protocol):
    """How an environment speaks with the policy: one conversation, whose token ids the host keeps.

    A call takes everything said so far, as in OpenAI's API: the messages of the call before, its reply as
    `{"role": "assistant", "content": completion.text}`, and new ones. Only the new ones are tokenised; they are
    appended to the exact ids of what was said before and never trained on. `stop` ends this reply at a text,
    `max_tokens` limits it, `tools` are JSON schemas that the chat template lists at the first turn.

    `sampling.max_tokens` is for the whole conversation after its first question; `left` is what there is still. With
    none left a reply is empty and its `finish_reason` is "length".
    """

    @property
    def left(self) -> int: ...

    async def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion: ...

    def episode(
        self,
        *,
        reward: float | None = None,
        parts: Mapping[str, float] | None = None,
        note: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> Episode:
        """The whole conversation as one episode; `metadata` goes to its completion, for rewards to read."""
        ...


class Environment(Protocol):
    """A task of several turns. `rollout` asks `generate` for replies and gives the finished episodes.

    It is a coroutine that returns one episode or several, or an async generator of them: `generate.episode(...)` for
    the whole conversation, or an `Episode` for each single reply. An episode's reward is one more reward of the run,
    of weight 1; None leaves the grade to the others. It is called for many prompts at once, in the reward service's
    process: what belongs to one conversation stays in local variables, and what blocks goes to a thread.
    """

    def rollout(
        self, prompt: Prompt, generate: Generate
    ) -> AsyncIterator[Episode] | Awaitable[Episode | Sequence[Episode]]: ...


class ModelSource(Protocol):
    """Gives a local Hugging Face folder (config.json, tokenizer, *.safetensors), making it if it must."""

    def local_path(self) -> str: ...


@attrs.frozen(kw_only=True)
class Capabilities:
    """What a transport can do; `auto` and the plan read it.

    Attributes:
        cross_host: readers on other hosts can fetch.
        gpu_direct: tensors on a GPU do not pass through host memory.
        several_readers: more than one reader may fetch a version.
        resharding: ranks may publish pieces, each under a namespace of its own, and readers take slices
            (`forge_host.loop.pieces`).
        partial: a version may hold some of the model's tensors only (adapters).
    """

    cross_host: bool = False
    gpu_direct: bool = False
    several_readers: bool = True
    resharding: bool = False
    partial: bool = False


@attrs.frozen
class Piece:
    """Where a published tensor lies in the whole one: index of its first element, its size, and the whole's shape."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    shape: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Receipt:
    """A published version: `location` is what a reader in another process needs, plain data that pickles.

    `checksums` (tensor name to hex digest) are there when they were asked for. `pieces` are there when the tensors
    are pieces of larger ones, and `parts` when the version is what several ranks published (`forge_host.loop.pieces`).
    """

    version: int
    num_tensors: int
    num_bytes: int
    location: Mapping[str, Any]
    checksums: Mapping[str, str] | None = None
    pieces: Mapping[str, Piece] | None = None
    parts: tuple[Receipt, ...] = ()


@runtime_checkable
class Transport(Protocol):
    """Moves whole versions of the weights from the trainer to generators.

    `publish` returns when the trainer may mutate its tensors again; versions strictly increase (ValueError if not);
    at most two versions stay alive. `fetch` yields every tensor of the receipt's version or raises `RunError`;
    tensors are valid until the iterator is exhausted or closed. `close` frees everything this process made.
    """

    capabilities: Capabilities

    def open(self, namespace: str) -> None: ...

    def publish(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False
    ) -> Receipt: ...

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]: ...

    def close(self) -> None: ...


@runtime_checkable
class Tracker(Protocol):
    """Receives finished steps. A tracker that raises is detached with a warning; the run goes on.

    For services on a network: `RunInfo.plain_config`, `StepReport.finite` and `outcome` give what they can hold.
    """

    def start(self, run: RunInfo) -> None: ...

    def log(self, report: StepReport) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...


class Generator(Protocol):
    """What the loop asks of a generator actor; every method is a Monarch endpoint of a `ForgeActor`.

    `generate` returns `params.n` completions of one prompt, tokens in and tokens out. `update_weights` fetches a
    receipt's version through the transport and loads it in place, in-flight requests going on; it returns the
    checksum of the loaded tensors when `checksum` is set, else "". It may have `generate_many(prompts, params)`, which
    answers several prompts as one batch, so that the same call with the same seeds gives the same tokens whatever was
    called before; without it, how far a seed goes is its own affair. It may also have an endpoint `metrics` without
    arguments that returns totals by name; of those the loop reads `sync/pause_s`, the seconds in which updates kept it
    from making tokens. A generator whose configuration has a true `sleep_between_steps` has the endpoints `sleep` and
    `wake`, called before a synchronous step trains and before its weights are loaded.
    """

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Completion]: ...

    def update_weights(self, receipt: Receipt, checksum: bool = False) -> str: ...


class Trainer(Protocol):
    """What the loop asks of a trainer actor; every method is a Monarch endpoint of a `ForgeActor`.

    `inputs` and `targets` hold one dict a data-parallel rank and micro-batch; rank r of D takes r, r + D, ... (see
    `forge_host.loop.batch`). `train_step` makes one optimizer step and returns the loss. A trainer with a `lora_rank`
    in its settings also has `reference_logprobs`: `logprobs` without its adapters. It may have `snapshot(path)`, which
    copies what `save(path)` would write and writes it meanwhile, and `written()`, which returns when that is done.
    """

    def train_step(self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]) -> float: ...

    def logprobs(self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]) -> list[Any]: ...

    def publish(self, version: int) -> Receipt: ...


class Launcher(Protocol):
    """Where a run's processes run; see `forge_host.runtime.launch`.

    `hosts` promises what there will be, for the plan (None: only `open` finds out); `open` gets it; `close` gives it
    back. One that can be given more hosts names the key in an attribute `grow`.
    """

    def hosts(self) -> Sequence[Host] | None: ...

    async def open(self) -> Allocation: ...

    async def close(self) -> None: ...


class Load(Protocol):
    """What a router sees of a replica: its number, and the requests it is answering."""

    @property
    def index(self) -> int: ...

    @property
    def in_flight(self) -> int: ...


@attrs.frozen
class Request:
    """What a router sees of a request: the endpoint's name, its arguments, and its conversation ("" for none)."""

    method: str
    args: tuple[Any, ...] = ()
    session: str = ""


@runtime_checkable
class Router(Protocol):
    """Which replica of a service takes a request. `free` are those with a free place, never none; returns one of them.

    Called for every request, by one thread.
    """

    def choose(self, free: Sequence[Load], request: Request) -> Load: ...


def __getattr__(name: str) -> Any:
    if name in ("Allocation", "Host"):
        from forge_host.runtime import hosts, launch

        return hosts.Host if name == "Host" else launch.Allocation
    if name in ("tensor_digest", "weights_digest"):
        from forge_host.loop import checksum

        return getattr(checksum, name)
    if name == "ForgeActor":
        from forge_host.runtime.actor import ForgeActor

        return ForgeActor
    if name == "ForgePlugin":
        from forge_host.hookspecs import ForgePlugin

        return ForgePlugin
    raise AttributeError(f"module 'forge_host.api' has no attribute {name!r}")


__all__ = [
    "ADVANTAGE_ARGUMENTS", "AGGREGATIONS", "API_VERSION", "KINDS", "KL", "KL_ESTIMATORS", "LOSS_ARGUMENTS",
    "REWARD_ARGUMENTS", "Advantage", "Aggregation", "AlgorithmParts", "Allocation", "Capabilities", "CommandSpec",
    "Completion", "ComponentSpec", "Correction", "Dataset", "Environment", "Episode", "Finding", "ForgeActor",
    "ForgeError", "ForgePlugin", "Generate", "Generator", "Group", "Host", "HostInfo", "Kind", "Launcher", "Load",
    "Loss", "ModelSource", "Piece", "PluginError", "Prompt", "Receipt", "Request", "Reward", "RewardResult", "Router",
    "RunError", "RunInfo", "Sampler", "SamplingParams", "StepReport", "ToolCall", "Tracker", "Trainer", "Transport",
    "UsageError", "Use", "Verdict", "field", "hookimpl", "outcome", "tensor_digest", "tool_calls", "weights_digest",
]  # fmt: skip
