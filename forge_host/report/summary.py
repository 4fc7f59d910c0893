"""The end of a run on the terminal: did it learn, what does the model say now, where is everything, what to try next.

print_summary(json.load(open("runs/x/summary.json")))
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forge_host.report.findings import end_steps, findings
from forge_host.report.live import text_curve
from forge_host.report.rundata import load_run

CURVE_HEIGHT = 12  # lines
MAX_FINDINGS = 3


def print_summary(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the summary that `forge_host.loop.run.run` returns. Plain text when the output is no terminal."""
    console = console or Console(width=min(shutil.get_terminal_size((80, 24)).columns, 100), highlight=False)
    if summary.get("kind") == "sft":
        _print_sft(summary, console)
        return
    rewards = summary["rewards"]
    console.print()
    if len(rewards) >= 2:
        console.print(text_curve(rewards, min(console.width, 80), CURVE_HEIGHT, "mean reward"), markup=False)
    if summary["reward_first"] is not None:
        edge = end_steps(len(rewards))
        console.print(
            f"mean reward: first {edge} step{'s' * (edge > 1)} {summary['reward_first']:.3f}, last {edge} "
            f"[bold]{summary['reward_last']:.3f}[/bold] ({summary['reward_last'] - summary['reward_first']:+.3f})"
        )
    _print_held_out(summary, console)
    if summary["train_s"] is not None:
        console.print(
            f"{summary['steps']} steps in {summary['train_s']:.0f} s, start-up {summary['startup_s']:.0f} s, "
            f"policy version {summary['policy_version']}, {summary['weight_syncs_verified']:.0f} weight syncs verified"
        )
    if summary["samples"]:
        console.print(samples_table(summary["samples"]))
    _print_places(summary, console)
    if summary["status"] == "done":
        wrong = f'forge-host rollouts {escape(summary["directory"])} --where "reward<1"'
        console.print(f"next: {wrong}    what it still gets wrong", soft_wrap=True)
        console.print("      forge-host new my-reward --kind reward    your own reward")
        console.print("      forge-host components list    everything there is")


def _print_held_out(summary: Mapping[str, Any], console: Console) -> None:
    first, last = summary.get("evaluation_first") or {}, summary.get("evaluation_last") or {}
    for name, what in (("eval/mean", "reward on held-out prompts"), ("eval/greedy/mean", "the same, greedy")):
        if name in last:
            before = f"{first[name]:.3f} before, " if name in first else ""
            console.print(f"{what}: {before}[bold]{last[name]:.3f}[/bold] after")


def _print_sft(summary: Mapping[str, Any], console: Console) -> None:
    edge = end_steps(len(summary["losses"]))
    if edge:
        console.print(
            f"\ntraining loss: first {edge} step{'s' * (edge > 1)} {summary['loss_first']:.4f}, last {edge} "
            f"[bold]{summary['loss_last']:.4f}[/bold] nats a token"
        )
    if summary["eval_loss_last"] is not None:
        console.print(f"held-out loss: {summary['eval_loss_first'] or summary['eval_loss_last']:.4f} at the start, "
                      f"[bold]{summary['eval_loss_last']:.4f}[/bold] at the end")  # fmt: skip
    if summary["train_s"] is not None:
        rate = f", {summary['tokens_per_s']:,.0f} tokens/s" if summary["tokens_per_s"] else ""
        console.print(
            f"{summary['steps']} steps in {summary['train_s']:.0f} s{rate}, start-up {summary['startup_s']:.0f} s, "
            f"{summary['dropped']:.0f} examples left out as too long"
        )
    _print_places(summary, console)
    if summary["status"] == "done" and "model" in summary:
        model = escape(summary["model"])
        console.print(f"next: forge-host eval CONFIG --model {model}    grade it", soft_wrap=True)
        console.print(f"      forge-host run CONFIG --set model={model}    reinforcement learning", soft_wrap=True)


def _print_places(summary: Mapping[str, Any], console: Console) -> None:
    found = [f for f in findings(load_run(summary["directory"])) if f.level in ("bad", "warning")]
    for finding in found[:MAX_FINDINGS]:
        console.print(f"[bold]{finding.level}[/bold]: {escape(f'{finding.title}: {finding.evidence}')}", soft_wrap=True)
    if len(found) > MAX_FINDINGS:
        console.print(f"and {len(found) - MAX_FINDINGS} more in the report")
    console.print(f"run directory: {escape(summary['directory'])}", soft_wrap=True)
    if "model" in summary:
        console.print(f"trained model: {escape(summary['model'])} (Hugging Face format)", soft_wrap=True)
    if summary.get("report"):
        console.print(f"report, to open in a browser: [bold]{escape(summary['report'])}[/bold]", soft_wrap=True)


def print_evaluation(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the summary of an evaluation: every metric, a few answers, where the graded responses are."""
    console = console or Console(width=min(shutil.get_terminal_size((80, 24)).columns, 100), highlight=False)
    metrics = dict(summary["metrics"])
    intervals = {name: value for name, value in metrics.items() if name.endswith("/ci95")}
    table = Table("metric", "value", title=f"{escape(summary['model'])}", title_justify="left")
    for name, value in metrics.items():
        if name not in intervals:
            half = intervals.get(name.removesuffix("mean") + "ci95") if name.endswith("/mean") else None
            table.add_row(name, f"{value:g}" if half is None else f"{value:.4f} +- {half:.4f} (95%)")
    console.print(table)
    if summary["left_out"]:
        console.print(f"{summary['left_out']} prompts were left out as too long")
    if ungraded := summary["not_gradable"]:
        more = ", ..." if len(ungraded) > 5 else ""
        console.print(f"{len(ungraded)} prompts could not be graded: {escape(', '.join(ungraded[:5]))}{more}")
    for sample in summary["samples"]:
        console.print(f"[bold]{_short(sample['prompt'], 70)}[/bold] (target {_short(sample['target'] or 'none', 20)})")
        console.print(f"  {_short(sample['response'], 90)} ({_reward(sample['reward'])})")
    console.print(f"run directory: {escape(summary['directory'])}", soft_wrap=True)


def samples_table(samples: Sequence[Mapping[str, Any]]) -> Table:
    """Greedy answers to the same prompts before and after training."""
    table = Table(
        "prompt", "target", "before", "after", title="greedy answers to the same prompts", title_justify="left"
    )
    for sample in samples:
        table.add_row(
            _short(sample["prompt"], 40),
            _short(sample["target"] or "", 12),
            f"{_short(sample['before'], 40)} ({_reward(sample['before_reward'])})",
            f"{_short(sample['after'], 40)} ({_reward(sample['after_reward'])})",
        )
    return table


def _short(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return escape(flat if len(flat) <= limit else flat[: limit - 3] + "...")


def _reward(value: float | None) -> str:
    return "not graded" if value is None else f"{value:g}"
