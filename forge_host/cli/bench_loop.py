"""`forge-host bench loop`: a step taken apart: generation alone, training alone, their sum, whole steps.

forge-host bench loop quickstart --steps 6
forge-host bench loop c.yaml --services.generator.cpus 0 --services.trainer.cpus 1     # one core each
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options

#: figure -> what it is
ROWS = {
    "generation_s": "generation alone, seconds a step's responses",
    "generated_tokens_per_s": "  tokens/s",
    "training_s": "training alone, seconds a step",
    "trained_tokens_per_s": "  tokens/s, prompts included",
    "weight_sync_s": "publish and load alone, seconds",
    "sum_s": "generation alone + training alone",
    "larger_s": "the larger of the two",
    "sync_step_s": "synchronous step, seconds",
    "sync_over_sum": "  over the sum",
    "host_share": "  share of the host itself",
    "async_step_s": "asynchronous step, seconds",
    "async_over_larger": "  over the larger",
}


@click.command(context_settings=CONFIG_CONTEXT)
@config_options
@click.option("--steps", default=6, type=click.IntRange(1), help="Repetitions that count, of each part.")
@click.option("--warmup", default=2, type=click.IntRange(1), help="Repetitions before, not counted.")
@click.option(
    "--mode", default="both", type=click.Choice(("sync", "async", "both")), help="Which whole steps are measured."
)
@click.option("--run-dir", metavar="DIR", help="Keep the run directory, with its logs, here.")
@click.option("--json", "as_json", is_flag=True, help="One last line of JSON.")
def loop(setup: Setup, steps: int, warmup: int, mode: str, run_dir: str | None, as_json: bool) -> None:
    """Take a step of CONFIG apart (default: quickstart). Nothing of the training is kept."""
    from forge_host.loop.bench_loop import LoopBench
    from forge_host.loop.run import run

    modes = ("sync", "async") if mode == "both" else (mode,)
    setup.configs = setup.configs or ("quickstart",)
    setup.overrides = (*setup.overrides, "checkpoint.export=false", "checkpoint.interval=0", "evaluation.interval=0")
    resolved = setup.resolve()
    if "async" in modes and resolved.config.training.max_policy_age == 0:
        setup.overrides = (*setup.overrides, "training.max_policy_age=1")
        resolved = setup.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        arguments: dict[str, Any] = {"steps": steps, "warmup": warmup, "modes": modes}
        arguments["say"] = lambda line: click.echo(line, err=True)
        where = run_dir or str(Path(temporary) / "run")
        summary = run(
            resolved, setup.host, run_dir=where, runner=LoopBench, runner_args=arguments, quiet=True, say=lambda _: None
        )
    for name, what in ROWS.items():
        if name in summary:
            print(f"{what:<46} {summary[name]:12,.3f}")
    if as_json:
        print(json.dumps({k: v for k, v in summary.items() if isinstance(v, float)}))
