"""The verdict, and each finding: shown by a run that has the problem, not by one that has not."""

import math

import pytest
from made_runs import CONFIG, healthy

from forge_host.report.findings import end_steps, findings, trend, verdict
from forge_host.report.rundata import load_run


def titles(path):
    return {f.title: f for f in findings(load_run(path))}


def with_(**changes):
    """Healthy metrics with some replaced: a number, or a function of (step, steps)."""
    def metrics(step, steps):
        out = healthy(step, steps)
        for name, value in changes.items():
            out[name.replace("__", "/")] = value(step, steps) if callable(value) else value
        return out

    return metrics


def test_the_ends_of_a_short_run_do_not_overlap():
    assert [end_steps(count) for count in (0, 1, 2, 3, 9, 10, 16)] == [0, 1, 1, 1, 4, 5, 5]


def test_a_healthy_run_has_no_finding(make_run):
    path = make_run()
    assert titles(path) == {}
    level, text = verdict(load_run(path))
    assert level == "good" and text.startswith("It learned: mean reward 0.") and "over 20 steps" in text


CASES = {
    "Entropy collapse": (
        {"policy__entropy": lambda s, n: 1.2 * 0.6**s, "reward__mean": lambda s, n: 0.3}, "bad",
        "grpo.beta, from 0 to 0.1",
    ),
    "The policy left the reference": ({"policy__kl": lambda s, n: s / n}, "warning", "grpo.beta"),
    "Responses grow": (
        {"response__length_mean": lambda s, n: 100.0 + 20 * s, "reward__mean": lambda s, n: 0.3}, "warning",
        "token-mean",
    ),
    "Responses are cut": ({"response__truncated_share": 0.8}, "warning", "grpo.max_tokens"),
    "Sign of reward hacking": (
        {"eval__mean": lambda s, n: 0.6 - 0.4 * s / n, "eval__ci95": 0.05}, "bad", "KL penalty"
    ),
    "Reward part `tone` never varies": (
        {"reward__tone__mean": 0.5, "reward__tone__std": 0.0}, "warning", "reward/tone==0.5"
    ),
    "Most groups teach nothing": ({"reward__zero_variance_share": 0.9}, "warning", "grpo.n_samples"),
    "Trainer and generator disagree": ({"policy__generator_kl": 0.05}, "warning", "grpo.correction: truncate"),
    "The trainer starves": ({"time__generate_s": 9.0}, "warning", "num_replicas"),
    "Weight sync is slow": ({"time__sync_s": 4.0}, "warning", "training.sync_interval"),
    "Most rollouts are rejected": ({"buffer__rejected": 20.0}, "warning", "not kept"),
    "Responses that could not be graded": ({"reward__error_rate": 0.2}, "warning", "error != None"),
    "/dev/shm is nearly full": ({"system__shm_share": 0.95}, "warning", "--shm-size"),
    "No gradient": ({"policy__grad_norm": 0.0}, "bad", "rewards differ"),
    "Metrics that are not numbers": (
        {"policy__loss": lambda s, n: math.nan if s >= 15 else 0.1}, "bad", "training.learning_rate"
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", CASES)
def test_each_problem_is_found_with_evidence_and_remedy(make_run, title):
    changes, level, remedy = CASES[title]
    found = titles(make_run(metrics=with_(**changes)))
    assert title in found, found
    assert found[title].level == level and remedy in found[title].remedy
    assert any(character.isdigit() for character in found[title].evidence)


@pytest.mark.parametrize("verified", [True, False])
def test_a_slow_sync_that_is_verified_says_so(make_run, verified):
    config = CONFIG.replace("max_steps: 20", f"max_steps: 20, verify_weight_sync: {str(verified).lower()}")
    found = titles(make_run(metrics=with_(time__sync_s=4.0), config=config))["Weight sync is slow"]
    assert ("verify_weight_sync: false" in found.remedy) is verified


@pytest.mark.parametrize("age", [0.0, 2.0])
def test_a_disagreement_with_old_tokens_is_put_down_to_their_age(make_run, age):
    found = titles(make_run(metrics=with_(policy__generator_kl=0.05, policy_age__max=age)))
    disagreement = found["Trainer and generator disagree"]
    assert ("up to 2 versions old" in disagreement.evidence) is bool(age)
    assert ("lower training.max_policy_age" in disagreement.remedy) is bool(age)
    assert ("use one dtype" in disagreement.remedy) is not bool(age)


def test_nan_names_the_first_step(make_run):
    metrics = with_(policy__loss=lambda s, n: math.inf if s == 7 else 0.1)
    assert "first at step 7: policy/loss at 1 of 20 steps" in titles(make_run(metrics=metrics))[
        "Metrics that are not numbers"].evidence  # fmt: skip


def test_solved_is_a_note_not_a_warning(make_run):
    metrics = with_(reward__zero_variance_share=0.9, reward__mean=lambda s, n: min(1.0, 0.3 + s / n))
    assert titles(make_run(metrics=metrics))["Most groups teach nothing"].level == "note"


def test_evaluation_that_rises_is_no_hacking(make_run):
    metrics = with_(eval__mean=lambda s, n: 0.2 + 0.4 * s / n, eval__ci95=0.05)
    assert titles(make_run(metrics=metrics)) == {}


@pytest.mark.parametrize(
    ("status", "steps", "mean", "level", "text"),
    [
        ("failed", 3, lambda s, n: 0.5, "bad", "Failed after step 3: trainer-0 died"),
        (None, 0, lambda s, n: 0.5, "warning", "No finished step so far"),
        ("done", 2, lambda s, n: 0.5, "note", "2 steps: too few"),
        ("done", 20, lambda s, n: 0.5 + 0.05 * (-1) ** s, "warning", "No change beyond noise"),
        ("interrupted", 20, lambda s, n: 0.9 - 0.5 * s / n, "bad", "It got worse: mean reward 0.8"),
    ],
)
def test_verdicts(make_run, status, steps, mean, level, text):
    path = make_run(steps=steps, status=status, metrics=with_(reward__mean=mean), error="trainer-0 died")
    found = verdict(load_run(path))
    assert found[0] == level and text in found[1]


def test_remedies_name_the_key_that_counts(make_run):
    config = "algorithm: dapo/dapo\ndapo: {beta: 0.04}\nkl: {beta: 0.2}\nsampling: {n: 8}\n"
    changes = {"policy__kl": lambda s, n: s / n, "reward__zero_variance_share": 0.9, "response__truncated_share": 0.8}
    found = titles(make_run(config=config, metrics=with_(**changes)))
    assert "(kl.beta, from 0.2 to 0.4)" in found["The policy left the reference"].remedy
    assert "raise sampling.n," in found["Most groups teach nothing"].remedy
    assert "raise dapo.max_tokens," in found["Responses are cut"].remedy


def test_supervised_runs_are_judged_by_their_loss(make_run):
    path = make_run(metrics=lambda s, n: {"train/loss": 3.0 - s / n})
    assert verdict(load_run(path))[0] == "good" and "loss 2." in verdict(load_run(path))[1]


def test_trend_needs_values_and_knows_noise():
    assert trend([1.0, 2.0, 3.0]) is None
    assert trend([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).direction == 1
    assert trend([0.0, 1.0, 0.0, 1.0]).direction == 0
    assert trend([0.5] * 9).direction == 0
