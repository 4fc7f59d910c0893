"""`forge-host sft`: supervised fine-tuning; the options are those of `forge-host run`.

    forge-host sft sft_smollm2
    forge-host sft c.yaml --set training.max_steps=20
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options
from forge_host.cli.run import run_options, train
from forge_host.errors import UsageError

if TYPE_CHECKING:
    from forge_host.config import Resolved


@click.command(context_settings=CONFIG_CONTEXT)
@config_options
@run_options
def sft(setup: Setup, **options: Any) -> None:
    """Train on a dataset's own responses. CONFIG is a YAML file or a recipe (default: sft_smollm2)."""
    train(setup, "sft_smollm2", _offline, **options)


def _offline(resolved: Resolved) -> None:
    plan = resolved.plan
    if not plan.offline:
        raise UsageError(
            f"{plan.algorithm.describe()} trains on responses that it generates",
            where=f"configuration `{resolved.config.name}`", fix="add `algorithm: sft`, or use `forge-host run`",
        )  # fmt: skip
