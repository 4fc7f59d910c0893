"""The trainer without its actor: one process's share of a TorchTitan model, its optimizer, and one step after another.

    engine = TitanEngine(TitanConfig(), model_path, TrainingConfig(), ParallelismConfig(), objective)
    loss = engine.train_step(inputs, targets)          # dicts of forge_host.loop.batch.make_batches
    for name, tensor in engine.named_tensors(): ...

Micro-batch i belongs to data-parallel rank i % D. Losses are parts of one sum over the whole step, so gradients add up
over micro-batches and ranks. Context-parallel ranks have the same micro-batches and the same loss, and each of them its
gradient through its own tokens. Without an objective the engine is a frozen reference model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from forge_host.config.schema import ParallelismConfig, TrainingConfig
from forge_host.errors import RunError, UsageError
from forge_host.rl import MetricSum, merge_metrics
from forge_host.rl.metrics import floats
from forge_plugin_titan import states
from forge_plugin_titan.config import TitanConfig
from forge_plugin_titan.head import Request
from forge_plugin_titan.kernels import allow_recompiling, choose, kernels
from forge_plugin_titan.layout import Layout, build_layout, send
from forge_plugin_titan.lora import adapters_off
from forge_plugin_titan.models import read_model
from forge_plugin_titan.optim import Optimizer
from forge_plugin_titan.parallel import DTYPES, build, resolve
from forge_plugin_titan.phases import Phase
from forge_plugin_titan.pieces import hf_pieces
from forge_plugin_titan.rows import RowPlan, plan_rows
from forge_plugin_titan.weights import hf_tensors, save_folder

Batch = Mapping[str, Any]


class TitanEngine:
    """One rank of the trainer; call every method on every rank with the same arguments.

    Args:
        objective: `objective(tensors, totals) -> (loss, metric sums)` with `objective.needs`
            (`forge_host.rl.objective.Objective`); None for a frozen model.
        temperature: of the policy's softmax, the one that responses were sampled with.
        device: as `forge_plugin_titan.device.prepare` gave it; torch.distributed is already initialised when needed.
        run_dir: where a batch with a non-finite loss is saved.
    """

    def __init__(
        self,
        config: TitanConfig,
        model_path: str,
        training: TrainingConfig,
        parallelism: ParallelismConfig,
        objective: Any = None,
        *,
        temperature: float = 1.0,
        device: torch.device | str = "cpu",
        run_dir: str | None = None,
    ) -> None:
        self.config, self.training, self.objective, self.run_dir = config, training, objective, run_dir
        #: Seconds by phase while this is a dict; every phase then waits for the device, which costs speed.
        self.spans: dict[str, float] | None = None
        # Greedy sampling (0) has no distribution to train on; the model's own is the natural one.
        self.temperature = temperature or 1.0
        self.device = torch.device(device)
        self.world = world = dist.get_world_size() if dist.is_initialized() else 1
        self.degrees = resolve(parallelism, world)
        trains = objective is not None
        choice = choose(config, training, self.device, trains=trains)
        self.attention, training = choice.attention, attrs.evolve(training, compile=choice.compiled)
        inner, self._plan = kernels(self.attention)
        if choice.compiled:
            allow_recompiling()
        if not trains:
            config = attrs.evolve(config, lora_rank=0)
        self.spec = read_model(
            model_path, seq_len=training.seq_len, fuse_qkv=config.fuse_qkv and world == 1 and not config.lora_rank,
            attention=inner, settings=config, seed=training.seed,
        )  # fmt: skip
        with self._phase("loading the model"):
            self.built = build(
                self.spec, self.degrees, training, self.device, trains=trains, cpu_offload=config.cpu_offload
            )
            self.model = self.built.model
            self.optimizer = None
            if trains:
                offload = config.cpu_offload and world == 1 and self.device.type == "cuda"
                self.optimizer = Optimizer(
                    self.model, training, DTYPES[training.dtype], copies=world == 1, offload=offload
                )
        self.publish_dtype = DTYPES[config.publish_dtype or training.dtype]
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.step = 0
        self._metrics: dict[str, float] = {}
        self._writer = ThreadPoolExecutor(1, "save-state")
        self._writing: Future[None] | None = None

    def _phase(self, name: str) -> Phase:
        return Phase(name, self.device, self.spans)

    # --- forward --------------------------------------------------------------------------------------------------

    def layout(self, inputs: Batch, targets: Batch) -> Layout:
        """Check a micro-batch and lay this rank's part of it out on its device."""
        return build_layout(
            inputs, targets, share_prompts=self.config.share_prompts,
            multiple=self.config.pad_to or (1 if self.attention == "sdpa" else 128), max_length=self.training.seq_len,
            vocab_size=self.spec.vocab_size, part=(self.built.context_rank, self.degrees.context), device=self.device,
        )  # fmt: skip

    def forward(self, layout: Layout, *, with_entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the response tokens and, if asked, entropies; float32 [B, T], 0 in the padding."""
        masks = self._plan(layout, self.device)
        self.model.lm_head.request = Request(
            pick=layout.pick, ids=layout.ids, temperature=self.temperature, block=self.config.logprob_block,
            with_entropy=with_entropy, keep_bytes=self.config.keep_logits * 2**20, fuse=self.config.compile_head,
        )  # fmt: skip
        logprobs, entropy = self.model(layout.tokens, layout.positions, masks)
        group = self.built.group("cp")
        return layout.to_rows(logprobs, group), layout.to_rows(entropy, group) if entropy is not None else None

    @torch.no_grad()
    def logprobs(self, inputs: Sequence[Batch], targets: Sequence[Batch], *, adapters: bool = True) -> list[Tensor]:
        """Log-probabilities of every micro-batch under the present weights, float32 [B, T] on the CPU, in order.

        Args:
            adapters: False leaves LoRA's adapters out, which gives the model that training began with.

        Raises:
            UsageError: `adapters` is False and there are none.
        """
        if not adapters and not self.spec.adapters:
            raise UsageError(
                "the trainer has no adapters to leave out", fix="set trainer.lora_rank, or use a ref_model"
            )
        mine = {}
        with nullcontext() if adapters else adapters_off(self.model):
            for i in self._share(inputs, targets):
                with self._phase("the log-probabilities"):
                    mine[i] = self.forward(self.layout(inputs[i], targets[i]))[0].cpu()
        if self.degrees.data > 1:
            parts: list[Any] = [None] * self.degrees.data
            dist.all_gather_object(parts, mine, group=self.built.group("batch"))
            mine = {i: tensor for part in parts for i, tensor in part.items()}
        return [mine[i] for i in range(len(inputs))]

    # --- training -------------------------------------------------------------------------------------------------

    def train_step(self, inputs: Sequence[Batch], targets: Sequence[Batch]) -> float:
        """One optimizer step on all micro-batches; the step's loss.

        Raises:
            RunError: loss or gradient is not finite (the weights stay as they were, the batch is saved), or memory ran
                out, naming the phase.
        """
        if self.optimizer is None:
            raise RunError("a frozen model cannot be trained", fix="use the trainer role")
        began = time.perf_counter()
        totals = self.objective.totals(targets)
        loss = torch.zeros((), device=self.device)
        shares: list[Mapping[str, MetricSum]] = []
        counts = {"tokens": 0, "rows": 0, "filled": 0, "trained": 0}
        for i in self._share(inputs, targets):
            with self._phase("packing"):
                layout = self.layout(inputs[i], targets[i])
            part, metrics = self._micro_batch(layout, targets[i], totals)
            loss += part
            shares.append(metrics)
            counts["tokens"] += layout.num_tokens
            counts["filled"] += layout.length
            counts["rows"] += layout.row_tokens
            counts["trained"] += int(targets[i]["padding_mask"].sum())
        queued = time.perf_counter()
        loss, shares, counts = self._reduce(loss, shares, counts)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        middle = time.perf_counter()
        with self._phase("the optimizer step"):
            norm = self.optimizer.clip(self.built.dims)
            self._check(float(loss), float(norm), inputs, targets)
            rate = self.optimizer.step(self.step)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.step += 1
        seconds = time.perf_counter() - began
        self._metrics = {
            **merge_metrics(shares),
            "policy/loss": float(loss),
            "policy/grad_norm": float(norm),
            "policy/learning_rate": rate,
            "tokens/trained": float(counts["trained"]),
            "tokens/forward": float(counts["filled"]),
            "tokens/useful_share": counts["tokens"] / counts["filled"],
            "tokens/shared_share": 1.0 - counts["tokens"] / counts["rows"],
            "tokens/train_per_s": counts["rows"] / seconds,
            "time/forward_backward_s": middle - began,
            "time/queue_s": queued - began,
            "time/optimizer_s": began + seconds - middle,
        }
        return float(loss)

    def metrics(self) -> dict[str, float]:
        """Of the last step."""
        return dict(self._metrics)

    def rehearse(self, inputs: Sequence[Batch], targets: Sequence[Batch]) -> None:
        """Forward and backward as a step has them; nothing is left of the gradients.

        Without the loss plugin, which may keep a state of its own.
        """
        assert self.optimizer is not None
        self.optimizer.drops = True
        try:
            for i in self._share(inputs, targets):
                with self._phase("the forward pass"):
                    logprobs, entropy = self.forward(self.layout(inputs[i], targets[i]), with_entropy=True)
                assert entropy is not None
                with self._phase("the backward pass"):
                    (logprobs + entropy if "entropy" in self.objective.needs else logprobs).sum().backward()
        finally:
            self.optimizer.drops = False
            self.optimizer.zero_grad()

    def _micro_batch(self, layout: Layout, targets: Batch, totals: Any) -> tuple[Tensor, Mapping[str, MetricSum]]:
        needs = self.objective.needs
        with self._phase("the forward pass"):
            logprobs, entropy = self.forward(layout, with_entropy=True)
        assert entropy is not None
        tensors = {k: send(v, self.device) if isinstance(v, Tensor) else v for k, v in targets.items()}
        tensors["logprobs"] = logprobs
        # Always a metric; its gradient is computed only for a loss that has it.
        tensors["entropy"] = entropy if "entropy" in needs else entropy.detach()
        if tensors.get("old_logprobs") is None:
            # One update a step: the weights at its start are the ones of this forward pass.
            tensors["old_logprobs"] = logprobs.detach()
        with self._phase("the loss"):
            loss, metrics = self.objective(tensors, totals)
        with self._phase("the backward pass"):
            loss.backward()
        return loss.detach(), metrics

    def _share(self, inputs: Sequence[Batch], targets: Sequence[Batch]) -> range:
        data = self.degrees.data
        if len(inputs) != len(targets) or not inputs or len(inputs) % data:
            raise RunError(
                f"{len(inputs)} inputs and {len(targets)} targets cannot be divided among {data} data-parallel ranks"
            )
        return range(self.built.data_rank, len(inputs), data)

    def _reduce(
        self, loss: Tensor, shares: list[Mapping[str, MetricSum]], counts: dict[str, int]
    ) -> tuple[Tensor, list[Mapping[str, MetricSum]], dict[str, int]]:
        """The loss and counts summed over data-parallel ranks, and everybody's shares of the metrics."""
        group = self.built.group("batch")
        if group is None:
            return loss, shares, counts
        mine = (float(loss), floats(shares), counts)
        everybody: list[Any] = [None] * self.degrees.data
        dist.all_gather_object(everybody, mine, group=group)
        return (
            torch.tensor(sum(part[0] for part in everybody), device=self.device),
            [share for part in everybody for share in part[1]],
            {name: sum(part[2][name] for part in everybody) for name in counts},
        )

    def _check(self, loss: float, norm: float, inputs: Sequence[Batch], targets: Sequence[Batch]) -> None:
        what = "loss" if not _finite(loss) else "gradient norm" if not _finite(norm) else None
        if what is None:
            return
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        where = "nowhere: there is no run directory"
        if self.run_dir is not None:
            path = Path(self.run_dir) / f"bad_batch_step{self.step}.pt"
            if not dist.is_initialized() or dist.get_rank() == 0:
                torch.save({"inputs": [dict(i) for i in inputs], "targets": [dict(t) for t in targets]}, path)
            where = str(path)
        raise RunError(
            f"{what} is {loss if what == 'loss' else norm} at step {self.step}; its batch is saved in {where}",
            fix="lower training.learning_rate, or look for extreme rewards or log-probabilities in the batch",
        )

    # --- weights --------------------------------------------------------------------------------------------------

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under their Hugging Face names in `publish_dtype`; every rank goes through all of them.

        Valid until the next `train_step`, which changes them in place.
        """
        rows, dtype = self._rows, self.publish_dtype
        return hf_tensors(self.model, self.spec, dtype) if rows is None else rows.tensors(dtype)

    def plan_tensors(self) -> None:
        """Find out now what `named_tensors` would find out at its first call."""
        self._rows  # noqa: B018 - kept

    @cached_property
    def _rows(self) -> RowPlan | None:
        return plan_rows(self.model, self.spec)

    def named_pieces(self) -> Iterator[tuple[str, Tensor, tuple[int, ...], tuple[int, ...]]]:
        """What this rank publishes of them when the model is split, with its place and the whole's shape.

        See `forge_plugin_titan.pieces`; every rank goes through all of its own.
        """
        return hf_pieces(self.model, self.spec, self.publish_dtype)

    def free_cached_memory(self) -> None:
        """Give the GPU memory that PyTorch keeps for later back to the device; nothing on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def save_hf(self, path: str) -> None:
        """Write a folder that transformers and vLLM load."""
        save_folder(path, self.model, self.spec, self.publish_dtype)

    def save(self, path: str) -> None:
        """Write this rank's part of the exact training state into folder `path`."""
        assert self.optimizer is not None
        states.save_state(path, self.optimizer, self.step, self.degrees)

    def snapshot(self, path: str) -> None:
        """Copy what `save` would write, and write it from a thread while training goes on."""
        assert self.optimizer is not None
        self._finish_writing()
        saved = states.collect_state(self.optimizer, self.step, self.degrees, copy=True)
        self._writing = self._writer.submit(states.write_state, path, saved)

    def written(self) -> None:
        """Wait for the last `snapshot` to be on disk.

        Raises:
            RunError: it could not be written.
        """
        self._finish_writing()

    def _finish_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            writing.result()
        except (OSError, RuntimeError) as error:  # torch's own writer raises the latter when the disk is full
            raise RunError(
                f"the training state could not be written: {error}", fix="free space or set run_dir elsewhere"
            ) from error

    def load(self, path: str) -> None:
        """Go on from `save`d state: the same steps follow, bit for bit on CPU."""
        assert self.optimizer is not None
        self.step = states.load_state(path, self.optimizer, self.degrees)


def _finite(value: float) -> bool:
    return value - value == 0.0
