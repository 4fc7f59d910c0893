"""The live view, rendered to recorded consoles: 80 columns, ASCII only, a run that just began, one without rewards."""

import io
import json
import re
import time

import pytest
from made_runs import episode, healthy
from rich.console import Console as RichConsole

from forge_host.api import RunInfo, StepReport
from forge_host.builtin.trackers import Console
from forge_host.report.live import LiveView, newest_response

CHAT = [{"role": "system", "content": "You are a calculator."}, {"role": "user", "content": "What is 3 + 4?"}]


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "rollouts").mkdir()
    rows = [
        episode(1, 1, response="an old one"),
        episode(2, 3, prompt=CHAT, response="[bold]It is seven. " * 40, parts={"math": 1.0, "brevity": 0.25}),
        episode(2, 4, response="graded only", reason="evaluation", kept=False),
    ]
    (tmp_path / "rollouts" / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path)


def report(step: int, **metrics: float) -> StepReport:
    values = {**healthy(step, 100), "tokens/useful_share": 0.93}
    return StepReport(step=step, policy_version=step, time=1.0, metrics=metrics or values)


def render(view: LiveView, width: int, encoding: str = "utf-8") -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    RichConsole(file=out, width=width, force_terminal=False, color_system=None, legacy_windows=False).print(view)
    out.seek(0)
    return out.read()


@pytest.mark.parametrize(("width", "encoding"), [(80, "utf-8"), (80, "ascii"), (120, "utf-8"), (200, "utf-8")])
def test_everything_is_shown_and_fits(directory, width, encoding) -> None:
    view = LiveView(name="quickstart-20261201-120000", max_steps=100, directory=directory)
    for step in range(1, 41):
        view.add(report(step), left="3m20s")
    text = render(view, width, encoding)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= min(width, 120) and len(text.splitlines()) <= 22
    for words in (
        "step 40/100, 3m20s left", "mean reward", r"reward +0\.400", r"KL +0\.0040", r"entropy +1\.040",
        r"policy age +1", r"tokens/s +940", r"useful tokens +93%", r"generate 40%  train 50%  sync 5%  host 5%",
        "What is 3 \\+ 4\\?", "It is seven", r"reward 1 \(math 1, brevity 0\.25\), 8 tokens", "version 40",
    ):  # fmt: skip
        assert re.search(words, text), words
    assert "[bold]" in text, "what a model wrote is text, never markup"
    assert "graded only" not in text and "Traceback" not in text


def test_before_the_first_step_and_after_it(directory, tmp_path) -> None:
    view = LiveView(name="a-run-with-quite-a-long-name-that-has-no-room-20261201", max_steps=None, directory=directory)
    text = render(view, 80)
    assert "starting" in text and "waiting for the first step" in text
    view.add(report(1))
    assert "the curve begins with the second step" in render(view, 80)
    assert max(map(len, render(view, 80).splitlines())) <= 80
    assert newest_response(tmp_path / "none") is None


def test_what_is_not_finite_is_shown_as_it_is(directory) -> None:
    view = LiveView(name="x", max_steps=3, directory=directory)
    for step, value in ((1, 0.5), (2, float("nan")), (3, 0.25)):
        view.add(report(step, **{"reward/mean": value, "policy/kl": float("inf"), "time/step_s": 1.0}))
    assert view.curve == [0.5, 0.25] and re.search(r"KL +inf", render(view, 80))


def test_a_run_without_rewards_shows_its_loss(tmp_path) -> None:
    view = LiveView(name="sft", max_steps=20, directory=str(tmp_path))
    for step in (1, 2, 3):
        view.add(report(step, **{"train/loss": 3.0 / step, "eval/loss": 1.5, "time/step_s": 2.0, "time/train_s": 1.9}))
    text = render(view, 80)
    assert "training loss" in text and re.search(r"loss +1\.0000", text) and re.search(r"held-out loss +1\.5000", text)
    assert "mean reward" not in text and "response" not in text


def test_the_console_shows_it_in_a_terminal_and_leaves_it_there(directory) -> None:
    out = io.StringIO()
    tracker = Console()
    tracker._console = RichConsole(file=out, width=80, height=30, force_terminal=True, legacy_windows=False)
    tracker.start(RunInfo(id="quickstart-1", directory=directory, config={"training": {"max_steps": 2}}))
    tracker.log(report(1))
    tracker.log(report(2))
    tracker.finish({})
    tracker.finish({})
    assert "step 2/2" in out.getvalue() and "It is seven" in out.getvalue()
    assert "  s/step   " not in out.getvalue(), "no lines beside the live view"


def test_a_step_costs_little(directory) -> None:
    view = LiveView(name="x", max_steps=10_000, directory=directory)
    for step in range(1, 5001):
        view.curve.append(step / 5000)
    began = time.process_time()
    view.add(report(5001))
    render(view, 80)
    assert time.process_time() - began < 1.0
