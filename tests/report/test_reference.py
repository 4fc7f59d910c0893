"""The expected curve: which runs it applies to, when a run is outside, and what `--check` answers."""

import pytest
from made_runs import CONFIG, healthy

from forge_host.cli.main import main
from forge_host.config.recipes import recipe_names
from forge_host.errors import RunError, UsageError
from forge_host.report.charts import charts
from forge_host.report.reference import (
    Reference,
    check_run,
    check_settings,
    find_reference,
    load_reference,
    reference_names,
)
from forge_host.report.reference_make import make_reference
from forge_host.report.rundata import load_run

STEPS = list(range(1, 21))
REFERENCE = Reference(
    recipe="made", settings={"model": "smollm2", "training.batch_size": 4}, window=3, steps=STEPS,
    low=[0.1 + 0.5 * s / 20 for s in STEPS], high=[0.3 + 0.5 * s / 20 for s in STEPS], final_at_least=0.6,
    runs="made up",
)  # fmt: skip


def reward(function):
    return lambda s, n: {**healthy(s, n), "reward/mean": function(s)}


def test_inside(make_run):
    assert REFERENCE.check(load_run(make_run())) == []
    assert check_run(make_run("other"), REFERENCE) == "check: inside the expected curve of made (made up)"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda s: 0.2, "step 6: mean reward 0.200 is outside 0.250 to 0.450"),
        (lambda s: 0.9, "step 1: mean reward 0.900 is outside"),
        (lambda s: 0.2 + 0.5 * min(s, 15) / 20 - 0.08, "mean reward of the last five steps is 0.49"),
    ],
)
def test_outside(make_run, function, words):
    path = make_run(metrics=reward(function))
    with pytest.raises(RunError) as caught:
        check_run(path, REFERENCE)
    assert any(words in problem for problem in REFERENCE.check(load_run(path)))
    assert "left the expected curve" in str(caught.value) and caught.value.exit_code == 4


def test_one_unlucky_step_is_not_outside(make_run):
    assert REFERENCE.check(load_run(make_run(metrics=reward(lambda s: 0.2 + 0.5 * s / 20 - 0.12 * (s == 9))))) == []


def test_short_and_different_runs_are_no_comparison(make_run):
    assert "no reward/mean at step 6" in REFERENCE.check(load_run(make_run(steps=5)))[0]
    other = make_run("other", config=CONFIG.replace("batch_size: 4", "batch_size: 5"))
    with pytest.raises(RunError, match="training.batch_size is 5, and the reference of made was recorded with 4"):
        check_run(other, REFERENCE)


def test_drawn_behind_the_reward(make_run):
    run = load_run(make_run())
    assert find_reference(run) is None
    assert "expected" in next(charts([run], REFERENCE)).wide
    assert REFERENCE.centres[:5] == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert "expected" not in next(charts([run])).wide


def test_shipped_references_belong_to_recipes():
    assert "quickstart" in reference_names() and set(reference_names()) <= set(recipe_names())
    for name in reference_names():
        reference = load_reference(name)
        assert reference.recipe == name and len(reference.low) == len(reference.high) == len(reference.steps)
        assert all(low < high for low, high in zip(reference.low, reference.high, strict=True))
        learned = "it tells a run that learned from one that did not"
        if reference.final_at_least is not None:
            assert reference.high[0] < reference.final_at_least, learned
        else:
            assert reference.final_at_most is not None and reference.final_at_most < reference.low[0], learned


#: Shipped recipes without a curve, and why.
NOT_MEASURED = {"sft_llama3_8b": "needs two GPUs of 80 GB and a gated model"}


def test_every_recipe_has_a_curve_or_a_reason():
    assert set(recipe_names()) == set(reference_names()) | set(NOT_MEASURED)


def test_a_curve_of_a_loss_is_checked_and_drawn(make_run):
    """Supervised training: the loss must stay in its band and end low enough."""

    def falling(rate):
        return lambda s, n: {"train/loss": 3.0 * rate**s, "policy/grad_norm": 1.0 + s, "time/step_s": 1.0}

    runs = [load_run(make_run(f"sft{i}", metrics=falling(rate))) for i, rate in enumerate((0.9, 0.89))]
    made = Reference(**make_reference("made", runs))
    assert made.metric == "train/loss" and made.final_at_least is None
    assert [made.check(run) for run in runs] == [[], []]
    problems = made.check(load_run(make_run("stuck", metrics=falling(0.99))))
    assert "training loss" in problems[0] and "of the last five steps is" in problems[-1] and "above" in problems[-1]
    loss = next(chart for chart in charts(runs[:1], made) if chart.title == "Loss")
    assert "expected" in loss.svg and "expected mean over 4 steps" in loss.caption


def test_the_settings_are_checked_before_a_run():
    check_settings(CONFIG, REFERENCE)
    with pytest.raises(UsageError, match="batch_size is 5, and the reference of made was recorded with 4"):
        check_settings(CONFIG.replace("batch_size: 4", "batch_size: 5"), REFERENCE)


def test_shipped_references_have_the_settings_of_their_recipe(tmp_path):
    """A changed recipe needs a new curve."""
    from forge_host.config import load_plugins, resolve

    for name in reference_names():
        (tmp_path / "config.resolved.yaml").write_text(resolve((name,), host=load_plugins((name,))).to_yaml())
        assert load_reference(name).applies(load_run(tmp_path)) is None


def test_no_reference(capsys):
    with pytest.raises(UsageError, match="no reference curve for 'x'"):
        load_reference("x")
    assert main(["run", "sft-none", "--check"]) == 2
    assert "--check: there is no reference curve for 'sft-none'" in capsys.readouterr().err


def test_a_made_reference_holds_its_own_runs(make_run):
    runs = [load_run(make_run(f"r{i}", metrics=reward(lambda s, i=i: 0.1 * i + 0.5 * s / 20))) for i in range(3)]
    made = Reference(**make_reference("made", runs))
    assert [made.check(run) for run in runs] == [[], [], []]
    assert made.low[0] == pytest.approx(0.025 - 0.15) and made.high[-1] == pytest.approx(0.8125, abs=1e-3)
    assert made.check(load_run(make_run("flat", metrics=reward(lambda s: 0.1))))
    with pytest.raises(UsageError, match="two runs or more"):
        make_reference("made", runs[:1])
    with pytest.raises(UsageError, match="r4: it has steps"):
        make_reference("made", [*runs, load_run(make_run("r4", steps=5))])
    other = make_run("r5", config=CONFIG.replace("smollm2", "other"))
    with pytest.raises(UsageError, match="r5: model is 'other', and 'smollm2' in r0"):
        make_reference("made", [*runs, load_run(other)])
