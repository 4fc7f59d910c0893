"""Master weights, AdamW, the learning-rate schedule and gradient clipping.

In one process with `dtype: bfloat16` and `param_dtype: float32` the model itself is in bfloat16 and the optimizer works
on float32 copies: gradients go into float32 as soon as a micro-batch has them, updates are rounded into the model
once a step. (Autocast would cast every weight again in each forward pass and keep the residual stream in float32.)
With several processes FSDP does the same on shards, and model and master weights are one.

    optimizer = Optimizer(model, training, torch.bfloat16, copies=True)
    loss.backward(); norm = optimizer.clip(); optimizer.step(0)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from forge_host.config.schema import TrainingConfig


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Rate of optimizer step `step` (from 0): linear warm-up, then constant, or down to 0 at `max_steps`."""
    peak, warmup = training.learning_rate, training.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if training.lr_schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, training.max_steps - warmup))
    return peak * (1 - progress if training.lr_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))


class Optimizer:
    """AdamW over the model's master weights.

    Args:
        compute: dtype of the forward and backward pass.
        copies: turn the model's parameters into `compute` and keep what they were as master weights; False where FSDP
            does the casting.
        offload: keep the master weights and the optimizer's state in CPU memory; needs `copies`.

    `masters` maps names to the weights that are updated, the model's own parameters where no copy is needed.
    """

    def __init__(
        self, model: nn.Module, training: TrainingConfig, compute: torch.dtype, *, copies: bool, offload: bool = False
    ) -> None:
        self.training = training
        self.drops = False  #: gradients of copies are dropped as soon as they are there (`rehearsal`)
        self._model: list[Tensor] = []
        self._copies: list[Tensor] = []
        self.masters: dict[str, Tensor] = {}
        for name, param in model.named_parameters():
            name = name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
            if not param.requires_grad:  # beside adapters
                param.data = param.data.to(compute) if copies else param.data
                continue
            if not copies or (param.dtype == compute and not offload):
                self.masters[name] = param
                continue
            master = param.detach().to("cpu", copy=True) if offload else param.detach()
            # A copy in any case: with offloading the dtypes may be the same.
            param.data = param.detach().to(compute, copy=True)
            self.masters[name] = master
            self._model.append(param)
            self._copies.append(master)
            param.register_post_accumulate_grad_hook(self._into(master))
        self.adamw = torch.optim.AdamW(
            self.masters.values(), lr=training.learning_rate, betas=(training.adam_beta1, training.adam_beta2),
            weight_decay=training.weight_decay, fused=True,
        )  # fmt: skip

    def refresh(self) -> None:
        """Round the master weights into the model."""
        if self._copies:
            with torch.no_grad():
                torch._foreach_copy_(self._model, self._copies)

    def clip(self, dims: Any = None) -> Tensor:
        """Scale gradients to at most `max_grad_norm`; their norm over all processes before that, float32 scalar."""
        limit = self.training.max_grad_norm or math.inf
        masters = list(self.masters.values())
        if dims is None:
            return torch.nn.utils.clip_grad_norm_(masters, limit, foreach=True)
        from torchtitan.distributed.utils import clip_grad_norm_

        return clip_grad_norm_(masters, limit, foreach=True)

    def step(self, step: int) -> float:
        """Update with the schedule's rate of `step`, clear gradients; the rate used."""
        rate = learning_rate(self.training, step)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.zero_grad()
        self.refresh()
        return rate

    def zero_grad(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def _into(self, master: Tensor) -> Any:
        def accumulate(param: Tensor) -> None:
            if param.grad is None:
                return
            if self.drops:
                pass
            elif master.grad is None:
                master.grad = param.grad.to(master.device).to(master.dtype)
            else:
                master.grad.add_(param.grad.to(master.device))
            param.grad = None

        return accumulate
