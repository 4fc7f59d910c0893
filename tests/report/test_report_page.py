"""report.html: what is on it, that it needs nothing from outside, and that a damaged record still gives a page."""

import json
import math
import re
import time
from html.parser import HTMLParser

import pytest
from made_runs import episode, healthy

from forge_host.cli.main import main
from forge_host.errors import UsageError
from forge_host.report.charts import MAX_POINTS, charts, constants, thin
from forge_host.report.events import warnings_of
from forge_host.report.final import write_final_report
from forge_host.report.html import page, write_report
from forge_host.report.rundata import load_run
from forge_host.report.samples import pick

VOID = {"meta", "br", "input", "link", "img", "hr"}


class Checker(HTMLParser):
    """Collects text; fails on tags that do not nest, and on anything that would be loaded."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            assert name not in ("src", "data", "action"), f"{tag} loads {value}"
            assert name not in ("href", "xlink:href") or value.startswith("#"), f"{tag} points to {value}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text += data + "\n"


def titles(html):
    return re.findall(r'chart[^>]*"><h3>([^<]+)', html)


def test_page_shows_everything_and_loads_nothing(make_run):
    path = make_run()
    html = write_report([path]).read_text()
    text = Checker(html).text
    assert "url(http" not in html and "@import" not in html
    for part in ("It learned", "Nothing looks wrong", "First rollouts", "Best of the late", "Configuration",
                 "forge-plugin-math", "n_samples"):  # fmt: skip
        assert part in text, part
    assert titles(html) == [
        "Reward", "Reward parts", "KL to the reference", "Entropy", "Clipped tokens", "Response length", "Policy age",
        "Gradient norm", "Throughput", "Memory", "Time of a step",
    ], "what does not change is no chart"  # fmt: skip
    assert "#0a0b" not in html, "a chart kept a stand-in colour"


def test_constant_metrics_are_a_line_not_an_empty_chart(make_run):
    path = make_run(metrics=lambda s, n: {**healthy(s, n), "policy/clip_low": 0.0, "policy/clip_high": 0.0})
    run = load_run(path)
    assert "Clipped tokens: low 0, high 0 (share of tokens)" in constants([run])
    assert "Clipped tokens" not in titles(page([run]))


def test_what_was_not_measured_is_said(make_run):
    text = Checker(page([load_run(make_run())])).text
    assert "Not measured in this run" in text and "evaluation.interval above 0" in text
    assert "grpo.beta above 0" not in text and "entropy_coef above 0" not in text
    plain = make_run("plain", metrics=lambda s, n: {"reward/mean": s / n, "train/loss": 0.0})
    html = page([load_run(plain)])
    assert "grpo.beta above 0" in html and "entropy_coef above 0" in html and titles(html) == ["Reward"]


def test_supervised_runs_show_their_loss(make_run):
    path = make_run(metrics=lambda s, n: {"train/loss": 3.0 - s / n, "time/step_s": 1.0, "time/train_s": 0.5 + s / n})
    html = page([load_run(path)])
    assert titles(html) == ["Loss", "Time of a step"] and "Not measured" not in html


def test_an_evaluation_shows_its_numbers_and_responses(make_run):
    path = make_run(steps=0)
    summary = {"status": "done", "kind": "eval", "metrics": {"eval/mean": 0.5, "eval/pass@4": 0.75, "eval/ci95": 0.1}}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "metrics.jsonl").unlink()
    rows = [episode(0, i, reason="evaluation", kept=False, reward=i / 10) for i in range(9)]
    (path / "rollouts" / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = Checker(page([load_run(path)])).text
    assert "Evaluation: mean 0.500, pass@4 0.750." in text and "Incomplete" not in text
    assert "Best responses" in text and "reward 0.8" in text and "First rollouts" not in text


def test_several_runs_are_overlaid(make_run):
    paths = [make_run(f"run-{letter}") for letter in "ab"]
    html = page([load_run(p) for p in paths])
    text = Checker(html).text
    assert text.count("It learned") == 2 and "All metrics of run-b" in text
    assert "var(--s0)" in html and "var(--s1)" in html


def test_a_part_has_one_style_in_all_runs_and_broken_steps_are_said(make_run):
    def bad(step, steps):
        extra = {"reward/brevity/mean": step / steps, "policy/kl": math.nan if step > 15 else 0.01 * step}
        return {**healthy(step, steps), **extra}

    found = {c.title: c for c in charts([load_run(make_run("plain")), load_run(make_run("bad", metrics=bad))])}
    legends = re.findall(r"<path[^>]*var\(--muted\)[^>]*>", found["Reward parts"].svg)
    assert sum("stroke-dasharray" in line for line in legends) == 1, "math is drawn as in the run without brevity"
    assert found["KL to the reference"].caption == "nats a token; not a number at 5 steps, first at step 16"


def test_model_output_is_text(make_run):
    path = make_run(episodes=0)
    row = episode(1, 0, response="<script>alert(1)</script>", prompt=[{"role": "user", "content": "<b>hi"}])
    (path / "rollouts" / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    html = page([load_run(path)])
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html and "user: &lt;b&gt;hi" in html


def test_warnings_of_the_log_with_their_steps(make_run):
    path = make_run()  # step s ended at 1e9 + s seconds
    (path / "logs").mkdir()
    lines = [
        {"event": "transport chosen", "level": "info", "timestamp": "2001-09-09T01:46:40Z"},
        {"event": "tracker detached", "level": "warning", "timestamp": "2001-09-09T01:46:44.5Z", "tracker": "x<y"},
        {"event": "replica lost", "level": "error", "timestamp": "2001-09-09T02:00:00Z", "reason": "z" * 2000},
        {"event": "no clock", "level": "warning", "timestamp": "?"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"event": "cut'
    (path / "logs" / "controller.jsonl").write_text(text)
    events = warnings_of(load_run(path))
    assert [(e.step, e.text[:26]) for e in events] == [
        (5, "tracker detached: tracker "), (21, "replica lost: reason zzzzz"), (None, "no clock")]  # fmt: skip
    assert len(events[1].text) < 500
    html = page([load_run(path)])
    assert "3 warnings in the log" in html and "tracker x&lt;y" in html


def test_crashed_at_step_3(make_run):
    path = make_run(steps=3, status="failed", error="trainer-0 died during `train_step`")
    text = Checker(page([load_run(path)])).text
    assert "Failed after step 3: trainer-0 died" in text and "First rollouts" in text


def test_nan(make_run):
    def metrics(step, steps):
        return {name: math.nan if step > 10 else value for name, value in healthy(step, steps).items()}

    text = Checker(page([load_run(make_run(metrics=metrics))])).text
    assert "Metrics that are not numbers" in text and "first at step 11" in text
    everything = make_run("all-nan", metrics=lambda s, n: dict.fromkeys(healthy(s, n), math.nan))
    assert "too few to say" in Checker(page([load_run(everything)])).text


def test_cut_line_missing_files_and_one_step(make_run):
    path = make_run(steps=1, status=None)
    for name in ("plugins.lock", "config.resolved.yaml"):
        (path / name).unlink()
    for name in ("metrics.jsonl", "rollouts/rollouts.jsonl"):
        with (path / name).open("a") as file:
            file.write('{"step": 2, "metrics": {"rew')
    run = load_run(path)
    text = Checker(page([run])).text
    assert "metrics.jsonl line 2 is not a whole record" in text and "rollouts.jsonl line 9" in text
    assert "there is no plugins.lock" in text and "1 step so far" in text
    (path / "summary.json").write_text('{"status": "do')
    (path / "metrics.jsonl").write_bytes(b"\xff\xfe\n" + (path / "metrics.jsonl").read_bytes())
    assert "summary.json could not be read" in " ".join(load_run(path).notes)


def test_evaluation_has_points_and_none_needs_none(make_run):
    def metrics(step, steps):
        extra = {"eval/mean": 0.1 + 0.4 * step / steps, "eval/ci95": 0.05} if step % 5 == 0 else {}
        return {**healthy(step, steps), **extra}

    run = load_run(make_run(metrics=metrics, evaluation_first={"eval/mean": 0.1}))
    assert run.evaluation("eval/mean")[0] == [0, 5, 10, 15, 20]
    first = next(charts([run]))
    assert "held-out" in first.caption and "held out" in first.svg and "held out" in first.wide
    assert "held-out" not in next(charts([load_run(make_run("plain"))])).caption


def test_a_hundred_thousand_episodes(make_run):
    path = make_run(steps=2000, episodes=50)
    began = time.process_time()
    out = write_report([path])
    assert time.process_time() - began < 20
    assert out.stat().st_size < 5e6
    assert pick([episode(s, 0) | {"kind": "train"} for s in range(99)], 98).num_train == 99


def test_long_series_are_thinned_without_moving_the_mean():
    steps, values = thin(list(range(1, 5001)), [float(i % 2) for i in range(5000)])
    assert len(steps) <= MAX_POINTS and steps[0] > 1
    assert abs(sum(values) / len(values) - 0.5) < 0.05
    assert thin([1, 2], [0.0, 1.0]) == ([1, 2], [0.0, 1.0])


def test_command_line(make_run, tmp_path, capsys):
    path = make_run()
    assert main(["report", str(path)]) == 0
    assert (path / "report.html").stat().st_size > 10_000 and "report.html (" in capsys.readouterr().out
    assert main(["report", str(path), "--brief"]) == 0
    assert "made-20260101-101010: It learned" in capsys.readouterr().out
    for arguments, words in (
        (["report", str(tmp_path / "nope")], "nope does not exist"),
        (["report", str(tmp_path)], "is not a run directory, as it has none of config.resolved.yaml"),
        (["report", str(path / "metrics.jsonl")], "is a file, not a run directory"),
        (["report", str(path), "--out", str(tmp_path / "no" / "x.html")], "cannot write"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    with pytest.raises(UsageError, match="1 to 8 runs, not 9"):
        write_report([path] * 9)


def test_a_report_that_fails_is_a_warning(make_run, tmp_path, monkeypatch):
    import structlog

    assert write_final_report(make_run()) is not None
    with structlog.testing.capture_logs() as logs:
        assert write_final_report(tmp_path / "gone") is None
    assert [entry["event"] for entry in logs] == ["report not written"]
    assert logs[0]["log_level"] == "warning" and "does not exist" in logs[0]["error"]
