"""What the record of a run costs: metrics, system sampling, trackers, rollouts and the live view, for one step.

    python contrib/bench/record_overhead.py

Everything the controller does for the record between two steps, 64 responses of 200 tokens a step, on this machine's
disk. Steps last `--step-s` seconds, in which it sleeps: 0.7 is the quickstart's on one H200, on two cores it is 4 to 8.
Prints milliseconds a step by part and the share of the time. What it leaves out: the trainer's own metrics, which are
part of the loss's pass, and rejected groups.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console as RichConsole

from forge_host.api import Completion, Episode, Group, Prompt, RunInfo, StepReport, Verdict
from forge_host.builtin.trackers import Console, JsonLines
from forge_host.loop.record import RolloutRecord
from forge_host.loop.step import reward_metrics
from forge_host.report.system import SystemSampler

TEXT = "The sum of the two numbers is twelve, because five and seven make twelve. " * 12


def groups(step: int) -> list[Group]:
    """Eight prompts with eight scored responses each."""
    made = []
    for number in range(8):
        prompt = Prompt(id=f"p{number}", text="What is 5 + 7?", target="12")
        completion = Completion(text=TEXT, token_ids=range(200), logprobs=[-0.5] * 200, policy_versions=[step] * 200)
        episodes = tuple(
            Episode(id=f"{step}/{number}/{i}", prompt=prompt, completion=completion, reward=float(i % 2),
                    parts={"math": float(i % 2), "brevity": i / 8})
            for i in range(8)
        )  # fmt: skip
        made.append(Group(id=f"{step}:{number}", prompt=prompt, episodes=episodes))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.7, help="seconds that a step takes otherwise")
    arguments = parser.parse_args()
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], object]) -> object:
        began = time.perf_counter()
        result = call()
        spent.setdefault(name, []).append(1000 * (time.perf_counter() - began))
        return result

    with tempfile.TemporaryDirectory() as folder:
        run = RunInfo(id="bench", directory=folder, config={"training": {"max_steps": arguments.steps}})
        record, jsonl, live = RolloutRecord(Path(folder) / "rollouts"), JsonLines(), Console()
        system = SystemSampler(share=0.0005)
        live._console = RichConsole(file=io.StringIO(), width=80, height=40, force_terminal=True)
        for tracker in (jsonl, live):
            tracker.start(run)
        for step in range(1, arguments.steps + 1):
            made = groups(step)
            time.sleep(arguments.step_s)
            timed("rollout record", lambda made=made, step=step: [record.write(step, g, Verdict(True)) for g in made])
            metrics = dict(timed("reward metrics", lambda made=made: reward_metrics(made)))  # type: ignore[call-overload]
            metrics |= {f"policy/m{i}": i * 0.1 for i in range(25)} | {"time/step_s": 4.0, "time/train_s": 2.0}
            metrics |= timed("system metrics", system)  # type: ignore[operator]
            report = StepReport(step=step, policy_version=step, time=time.time(), metrics=metrics)
            timed("metrics.jsonl", lambda report=report: jsonl.log(report))
            timed("live view", lambda report=report: live.log(report))
        for tracker in (jsonl, live):
            tracker.finish({})
        record.close()
    total = 0.0
    for name, (_first, *values) in spent.items():  # the first step imports what the others use
        print(f"{name:16} {statistics.fmean(values):7.2f} ms a step, at most {max(values):.2f}")
        total += statistics.fmean(values)
    share = total / 1000 / arguments.step_s
    print(f"{'all':16} {total:7.2f} ms a step, {share:.2%} of a step of {arguments.step_s:g} s")


if __name__ == "__main__":
    main()
