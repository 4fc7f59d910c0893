"""A one-file plugin with every hook, as short as it can be; the hooks reference shows its parts, the tests load it.

forge-host run quickstart --plugin-file every_hook.py --dry-run
"""

import json
import time
from pathlib import Path

import click

from forge_host.api import CommandSpec, ComponentSpec, Finding, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_losses(host):
    return [ComponentSpec("mine", "my_pkg.losses:MyLoss", "policy gradient with my clipping")]


@hookimpl
def forge_advantages(host):
    return [ComponentSpec("mine", "my_pkg.advantages:mine", "reward minus my baseline", needs=("groups",))]


@hookimpl
def forge_rewards(host):
    return [ComponentSpec("terse", "my_pkg.reward:Terse", "shorter replies score higher")]


@hookimpl
def forge_samplers(host):
    return [ComponentSpec("mixed", "my_pkg.samplers:Mixed", "keeps groups with unequal rewards")]


@hookimpl
def forge_datasets(host):
    return [ComponentSpec("riddles", "my_pkg.data:Riddles", "riddles with their answers")]


@hookimpl
def forge_environments(host):
    return [ComponentSpec("guess", "my_pkg.env:Guess", "guess a number in several turns")]


@hookimpl
def forge_generators(host):
    # `config` names a light class of settings, so that the heavy module is imported by its own process only.
    return [ComponentSpec("mine", "my_pkg.gen:Actor", "my inference engine", config="my_pkg.config:Gen")]


@hookimpl
def forge_trainers(host):
    return [ComponentSpec("mine", "my_pkg.train:Actor", "my trainer", config="my_pkg.config:Train")]


@hookimpl
def forge_transports(host):
    return [ComponentSpec("bucket", "my_pkg.transport:Bucket", "weights through an object store")]


@hookimpl
def forge_trackers(host):
    return [ComponentSpec("chat", "my_pkg.chat:Chat", "a message every hundred steps")]


@hookimpl
def forge_launchers(host):
    return [ComponentSpec("mine", "my_pkg.launch:Cluster", "hosts of my scheduler")]


@hookimpl
def forge_routers(host):
    return [ComponentSpec("nearest", "my_pkg.routing:Nearest", "the replica that has the prompt's prefix")]


@hookimpl
def forge_models(host):
    return [ComponentSpec("mine", "my_pkg.models:Mine", "the model in our registry")]


@hookimpl
def forge_algorithms(host):
    return [ComponentSpec("mine", "my_pkg.algorithm:Mine", "my loss with a group baseline")]


@hookimpl
def forge_commands(host):
    return [CommandSpec("greet", f"{__name__}:greet", "say hello")]


@hookimpl
def forge_check_plan(plan, host):
    if plan.sampling.temperature < 0.5:
        yield Finding("warning", "responses will hardly differ", "raise sampling.temperature")


@hookimpl
def forge_run_started(run):
    Path(run.directory, "started").write_text(f"{run.id} {time.time()}\n")


@hookimpl
def forge_group_scored(run, group):
    if all(reward == 0 for reward in group.rewards):
        with open(Path(run.directory, "too_hard.jsonl"), "a") as out:
            out.write(json.dumps(group.prompt.id) + "\n")


@hookimpl
def forge_step_finished(run, report):
    if report.metrics["reward/error_rate"] > 0.1:
        print(f"step {report.step}: many responses could not be graded")


@hookimpl
def forge_weights_published(run, version, seconds):
    Path(run.directory, "newest_weights").write_text(f"{version} after {seconds:.2f} s\n")


@hookimpl
def forge_checkpoint_saved(run, step, path):
    Path(run.directory, "newest_checkpoint").write_text(f"{step} {path}\n")


@hookimpl
def forge_run_failed(run, error):
    Path(run.directory, "failed").write_text(f"{type(error).__name__}: {error}\n")


@hookimpl
def forge_run_finished(run, summary):
    Path(run.directory, "finished").write_text(json.dumps(summary["status"]) + "\n")


@click.command()
def greet():
    """Say hello."""
    click.echo("hello")
