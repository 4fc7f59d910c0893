"""`forge-host eval`: a model on held-out prompts, greedy and sampled; generator and rewards only.

    forge-host eval c.yaml --model runs/x/model --set evaluation.n_samples=8 --json

The prompts are those of the section `evaluation` (its `dataset`, `num_prompts`), graded by the configuration's rewards.
"""

from __future__ import annotations

import sys

import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options
from forge_host.errors import UsageError


@click.command("eval", context_settings=CONFIG_CONTEXT)
@config_options
@click.option("--model", "model", metavar="PATH", help="Grade this model instead of the configuration's.")
@click.option("--run-dir", metavar="DIR", help="Make exactly this run directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def evaluate(setup: Setup, model: str | None, run_dir: str | None, as_json: bool) -> None:
    """Grade a model: mean reward, pass@k, confidence interval, per category. CONFIG as for `run`."""
    if not setup.configs:
        raise click.UsageError("name the configuration to evaluate: forge-host eval CONFIG [--model PATH]")
    if model is not None:
        setup.options["model"] = model
    resolved = setup.resolve()
    if resolved.plan.offline:
        raise UsageError(
            f"{resolved.plan.algorithm.describe()} has neither rewards nor a generator to evaluate with",
            where=f"configuration `{resolved.config.name}`",
            fix="evaluate with a configuration that has rewards, and name the trained model with --model",
        )
    if not (resolved.config.evaluation.greedy or resolved.config.evaluation.n_samples):
        raise UsageError("evaluation.greedy is false and evaluation.n_samples is 0, so there is nothing to grade")
    for note in resolved.notes:
        print(f"note: {note}", file=sys.stderr)
    from forge_host.loop.run import run as start

    summary = start(
        resolved, setup.host, run_dir=run_dir, evaluate=True, say=lambda text: print(text, file=sys.stderr)
    )
    if as_json:
        from forge_host.cli.tables import print_json

        print_json(summary)
        return
    from forge_host.report.summary import print_evaluation

    print_evaluation(summary)
