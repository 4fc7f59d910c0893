"""Merging, choosing and provenance: what a configuration means."""

import pickle
from pathlib import Path

import attrs
import pytest

from forge_host.config import explain, resolve
from forge_host.config.schema import ServiceConfig
from forge_host.errors import UsageError
from forge_host.plugins import PluginHost
from forge_host.types import Use

FAKE_RL = Path(__file__).parent / "fake_rl.py"

SEED_WORKFLOW_1 = """
model: "Qwen/Qwen2.5-7B-Instruct"

dataset:
  path: "openai/gsm8k"
  split: "train"
  streaming: true

training:
  batch_size: 4
  learning_rate: 1e-6
  seq_len: 4096
  dtype: bfloat16
  gradient_accumulation_steps: 4

grpo:
  n_samples: 8           # Responses per prompt
  clip_low: 0.2
  clip_high: 0.28
  beta: 0.1              # KL penalty coefficient
  temperature: 0.7

services:
  generator:
    procs: 1
    num_replicas: 1
    with_gpus: true
  trainer:
    procs: 1
    num_replicas: 1
    with_gpus: true
  ref_model:
    procs: 1
    num_replicas: 1
    with_gpus: true
"""
SEED_WORKFLOW_3 = """
model: "meta-llama/Meta-Llama-3.1-8B-Instruct"

parallelism:
  tensor_parallel_degree: 2    # Split model across GPUs
  pipeline_parallel_degree: 1
  data_parallel_shard_degree: 2

services:
  generator:
    procs: 2                   # 2 processes for TP=2
    num_replicas: 1
    with_gpus: true
  trainer:
    procs: 2
    num_replicas: 1
    with_gpus: true
"""


def test_the_seeds_first_workflow_loads_unchanged_and_every_key_takes_effect(resolved):
    run = resolved(SEED_WORKFLOW_1, base="launcher: here\ntrackers: []\n")
    config, plan = run.config, run.plan
    assert plan.model.origin == "hub" and config.model == "Qwen/Qwen2.5-7B-Instruct"
    assert plan.dataset.use.config == {"path": "openai/gsm8k", "split": "train", "streaming": True, "revision": None}
    training = config.training
    assert (training.batch_size, training.learning_rate, training.seq_len) == (4, 1e-6, 4096)
    assert (training.dtype, training.gradient_accumulation_steps) == ("bfloat16", 4)
    assert (plan.sampling.n, plan.sampling.temperature, plan.kl.beta) == (8, 0.7, 0.1)
    assert plan.loss.use.config == {"clip_low": 0.2, "clip_high": 0.28}
    assert plan.needs_ref_logprobs and plan.roles == ("generator", "trainer", "reward", "ref_model")
    assert config.services["ref_model"] == ServiceConfig(with_gpus=True)


def test_the_seeds_third_workflow_loads_and_runs_with_its_own_options(resolved):
    run = resolved(SEED_WORKFLOW_3, base="launcher: here\ntrackers: []\n", trainer__procs="4", generator__procs="4")
    assert run.config.parallelism.tensor_parallel_degree == run.config.parallelism.data_parallel_shard_degree == 2
    assert run.config.services["trainer"] == ServiceConfig(procs=4, with_gpus=True)
    assert run.config.services["generator"].procs == 4
    assert run.provenance["services.trainer.procs"].where == "--trainer.procs 4"
    assert run.provenance["services.trainer.procs"].overrode == ((2, "c.yaml:17"),)


def test_the_seeds_third_workflow_alone_is_refused_with_the_arithmetic(resolved):
    assert (
        resolved(SEED_WORKFLOW_3, base="launcher: here\ntrackers: []\n", check=False).config.services["trainer"].procs
        == 2
    )
    with pytest.raises(
        UsageError, match=r"tensor 2 x shard 2\) needs 4 trainer processes .* 2 processes; add --trainer.procs 4"
    ):
        resolved(SEED_WORKFLOW_3, base="launcher: here\ntrackers: []\n")


@pytest.mark.parametrize(
    ("snippet", "key", "value"),
    [
        ("ref_model:\n  with_gpus: false\n", "services.ref_model.with_gpus", False),
        ("grpo:\n  n_samples: 4\n", "sampling.n", 4),
        ("training:\n  seq_len: 2048\n", "training.seq_len", 2048),
        ("training:\n  sync_interval: 10\n", "training.sync_interval", 10),
        ("grpo:\n  beta: 0.2\n", "kl.beta", 0.2),
        ("training:\n  entropy_coef: 0.01\n", "training.entropy_coef", 0.01),
    ],
)
def test_the_seeds_remedies_take_effect(resolved, snippet, key, value):
    assert [row.value for row in explain(resolved(snippet), key)] == [value]


def test_a_longer_sync_interval_raises_the_age_it_causes(resolved):
    run = resolved("training: {sync_interval: 10}")
    assert run.config.training.max_policy_age == 9
    assert run.provenance["training.max_policy_age"].where == "training.sync_interval - 1 (c.yaml:4)"


def test_order_defaults_preset_files_command_line(resolved, host, write):
    write("training: {seed: 1, max_steps: 5, batch_size: 2}\n", "low.yaml")
    high = write("model: tiny\nlauncher: here\ntrackers: []\ntraining: {seed: 2, max_steps: 6}\n", "high.yaml")
    run = resolve(["low.yaml", high], overrides=["training.seed=3"], options={"training.seed": "4"}, host=host)
    training, where = run.config.training, run.provenance
    assert (training.seed, training.max_steps, training.batch_size, training.entropy_coef) == (4, 6, 2, 0.003)
    assert where["training.seed"].where == "--training.seed 4"
    assert where["training.max_steps"].overrode == ((5, "low.yaml:1"),)
    assert where["training.batch_size"].where == "low.yaml:1"
    assert where["training.entropy_coef"].where == "algorithm preset grpo"
    assert where["training.dtype"].where == "default"


def test_explain_lists_what_was_overridden_strongest_first(host, write):
    write("loss: {clip_low: 0.1}\n", "low.yaml")
    write("model: tiny\nlauncher: here\ntrackers: []\nloss: {clip_low: 0.15}\n", "high.yaml")
    run = resolve(["low.yaml", "high.yaml"], overrides=["loss.clip_low=0.3"], host=host)
    (row,) = explain(run, "loss.clip_low")
    assert (row.value, row.where) == (0.3, "--set loss.clip_low=0.3")
    assert row.overrode == ((0.15, "high.yaml:4"), (0.1, "low.yaml:1"), (0.2, "algorithm preset grpo"))


def test_explain_covers_every_key_and_knows_near_ones(resolved):
    run = resolved("")
    keys = {row.key for row in explain(run)}
    assert {"model", "grpo.beta", "services.trainer.procs", "sampling.n", "rewards.1.use", "loss.clip_low"} <= keys
    with pytest.raises(UsageError, match="config key `training.sead` is unknown; did you mean `training.seed`"):
        explain(run, "training.sead")


# --- round trip -----------------------------------------------------------------------------------------------------

ROUND_TRIPS = [
    "",
    "grpo: {n_samples: 4, beta: 0.1}",
    "algorithm: dapo\ntraining: {off_by_n: 2}",
    "loss: {clip_low: 0.1}\nadvantage: single\nkl: {estimator: k1}\naggregation: sequence-mean\nsampling: {top_p: 0.9}",
    "rewards: {math: {weight: 2, tolerance: 0.1}, thinking: 0.5}\nname: run-1",
    "generator: {use: vllm, speed: 3, procs: 2, stops: ['no', '1e-6', 'a: b']}\nservices: {reward: {procs: 3}}",
    "training: {sync_interval: 3}\ndataset: {path: arithmetic, low: 2, system: 'Say: \"yes\"\n'}",
    "plugins: []\nreward: {mode: sum, procs: 2}",
    "dataset: {path: arithmetic, low: 2}\nevaluation: {interval: 5, dataset: {split: test, holdout: 0.1, low: 3}}",
    "rewards: [{use: half, of: {use: math, tolerance: 0.5}, scale: 1e-9}]",
]


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_the_resolved_file_resolves_identically(resolved, host, write, tmp_path, text):
    first = resolved(text)
    (tmp_path / "elsewhere").mkdir()
    second = resolve(write(first.to_yaml(), "elsewhere/config.resolved.yaml"), host=host)
    assert second.config == first.config
    assert second.plan == first.plan
    assert second.to_yaml() == first.to_yaml()


def test_evaluation_replaces_keys_of_the_dataset(resolved, tmp_path):
    run = resolved("dataset: {path: arithmetic, low: 2, high: 5}\nevaluation: {interval: 5, dataset: {low: 3}}")
    assert run.plan.dataset.use.config["low"] == 2
    assert (run.plan.evaluation.use.config["low"], run.plan.evaluation.use.config["high"]) == (3, 5)
    assert run.config.evaluation.dataset == {"low": 3} and run.config.evaluation.interval == 5
    assert run.provenance["evaluation.dataset.low"].where == "c.yaml:5"
    data = tmp_path / "test.jsonl"
    data.write_text('{"prompt": "1+1", "target": "2"}\n')
    run = resolved("dataset: {path: arithmetic, low: 2}\nevaluation: {dataset: {path: test.jsonl}}")
    assert run.plan.evaluation.ref == "builtin/jsonl" and run.plan.dataset.ref == "builtin/arithmetic"
    assert run.config.evaluation.dataset == {"path": str(data)}
    assert resolved("").plan.evaluation == resolved("").plan.dataset


def test_relative_paths_are_found_beside_the_file_and_become_absolute(host, write, tmp_path):
    write('{"prompt": "1+1", "target": "2"}\n', "conf/train.jsonl")
    write("class Mine:\n    def __call__(self, response):\n        return 1.0\n", "conf/mine.py")
    write("{}", "conf/model/config.json")
    text = "model: ./model\nlauncher: here\ntrackers: []\ndataset: train.jsonl\nrewards: ./mine.py:Mine\n"
    run = resolve(write(text, "conf/c.yaml"), host=host)
    assert run.config.model == str(tmp_path / "conf/model") and run.plan.model.origin == "folder"
    assert run.plan.dataset.use.config["path"] == run.config.dataset.path == str(tmp_path / "conf/train.jsonl")
    assert run.plan.rewards[0][0].use.ref == f"{tmp_path}/conf/mine.py:Mine" and run.plan.rewards[0][0].name == "mine"
    assert resolve(write(run.to_yaml(), "other/r.yaml"), host=host).config == run.config


def test_files_named_inside_components_lie_beside_the_configuration(tmp_path, monkeypatch):
    """Data files that a mix is made of, a judge's rubric: whatever the working directory is, then and when resumed."""
    folder = tmp_path / "conf"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl", "rubric.txt"):
        (folder / name).write_text('{"prompt": "{response}"}\n')
    (folder / "c.yaml").write_text(
        "model: tiny\nlauncher: here\ntrackers: []\n"
        "dataset: {path: mix, parts: [a.jsonl, {use: ./b.jsonl, limit: 1}]}\n"
        "rewards:\n- math\n- {use: judge, url: 'http://127.0.0.1:9/v1', model: j, rubric_file: rubric.txt}\n"
    )
    monkeypatch.chdir(tmp_path)
    host = PluginHost.load(("judge",), files=(str(FAKE_RL),), strict=True)
    run = resolve(str(folder / "c.yaml"), host=host)
    parts = run.plan.dataset.use.config["parts"]
    assert parts == [{"use": str(folder / "a.jsonl")}, {"use": str(folder / "b.jsonl"), "limit": 1}]
    assert run.plan.rewards[1][0].use.config["rubric_file"] == str(folder / "rubric.txt")
    monkeypatch.chdir("/")
    assert [p.metadata["category"] for p in host.build("dataset", run.plan.dataset.use)] == ["a.jsonl", "b.jsonl"]


# --- choosing -------------------------------------------------------------------------------------------------------


def test_an_algorithms_section_chooses_it(resolved):
    assert resolved("dapo: {beta: 0.5}").plan.algorithm.ref == "fake-rl/dapo"
    assert resolved("algorithm: dapo").plan.shaping[0].ref == "fake-rl/overlong"
    assert resolved("algorithm: fake-rl/dapo\ndapo: {beta: 0.5}").plan.kl.beta == 0.5
    assert resolved("algorithm: {use: dapo, beta: 0.5}").plan.kl.beta == 0.5


def test_another_algorithm_on_the_command_line_drops_the_files_section(resolved):
    run = resolved("grpo: {n_samples: 4, beta: 0.5}", "algorithm=dapo")
    assert run.plan.algorithm.name == "dapo" and (run.plan.sampling.n, run.plan.kl.beta) == (8, 0.0)
    assert (
        "algorithm is now dapo, so grpo.n_samples (c.yaml:4), grpo.beta (c.yaml:4) of grpo no longer apply" in run.notes
    )
    assert resolved("grpo: {n_samples: 4}", "grpo.beta=0.5").plan.sampling.n == 4


def test_another_dataset_drops_the_lower_ones_keys_and_keeps_the_general(resolved, tmp_path):
    data = tmp_path / "t.jsonl"
    data.write_text('{"prompt": "1+1", "target": "2"}\n')
    run = resolved("dataset: {path: arithmetic, low: 1, high: 5, system: Calculate.}", f"dataset.path={data}")
    assert run.plan.dataset.ref == "builtin/jsonl" and run.config.dataset.system == "Calculate."
    assert "low" not in run.plan.dataset.use.config
    note = (
        f"dataset.path is now {data}, so dataset.low (c.yaml:4), dataset.high (c.yaml:4) of arithmetic no longer apply"
    )
    assert note in run.notes
    same = resolved("dataset: {path: arithmetic, low: 4, high: 5}", "dataset.path=builtin/arithmetic")
    assert same.plan.dataset.use.config["low"] == 4 and not any("no longer" in note for note in same.notes)


def test_the_default_component_named_again_keeps_its_keys(resolved):
    assert resolved("generator: {speed: 3}", "generator.use=vllm").plan.generator.use.config["speed"] == 3
    run = resolved("generator: {speed: 3, procs: 2}", "generator.use=other-engine")
    assert run.plan.generator.ref == "fake-rl/other-engine" and run.config.services["generator"].procs == 2
    assert any("generator.speed (c.yaml:4) of vllm no longer" in note for note in run.notes)


def test_a_loss_named_like_the_algorithms_merges_and_another_replaces(resolved):
    assert resolved("loss: {use: grpo, clip_low: 0.1}").plan.loss.use.config == {"clip_low": 0.1, "clip_high": 0.28}
    assert resolved("loss: fake-rl/grpo").config.loss == Use("fake-rl/grpo", {"clip_low": 0.2, "clip_high": 0.28})
    run = resolved("loss: dapo")
    assert run.plan.loss.use == Use("fake-rl/dapo", {"clip_low": 0.2, "clip_high": 0.2})
    assert any(
        "loss `fake-rl/dapo` replaces loss `fake-rl/grpo` of algorithm preset grpo" in note for note in run.notes
    )


def test_settings_override_single_keys_of_the_preset(resolved):
    run = resolved("kl: {estimator: k2}\naggregation: sequence-sum\nsampling: {top_k: 5}\ngrpo: {beta: 0.3}")
    assert (run.plan.kl.beta, run.plan.kl.estimator) == (0.3, "k2")
    assert (run.plan.aggregation.mode, run.plan.sampling.top_k, run.plan.sampling.n) == ("sequence-sum", 5, 8)
    assert run.config.kl == {"estimator": "k2"} and run.provenance["kl.beta"].where == "algorithm preset grpo"


@pytest.mark.parametrize(
    "text",
    [
        "rewards: [math, thinking]",
        "rewards: {math: {}, thinking: {}}",
        "rewards: [{use: math}, {thinking: {weight: 1}}]",
    ],
)
def test_rewards_in_any_form(resolved, text):
    assert [(part.name, weight) for part, weight in resolved(text).plan.rewards] == [("math", 1.0), ("thinking", 1.0)]


def test_reward_weights_and_keys(resolved):
    (part, weight), *_ = resolved("rewards: [{use: math, weight: 2, tolerance: '1e-3'}]").plan.rewards
    assert weight == 2.0 and part.use.config == {"tolerance": 1e-3}
    assert resolved("rewards: math", "rewards.0.weight=3").plan.rewards[0][1] == 3.0
    assert resolved("", "rewards.1.weight=0").plan.rewards[1][1] == 0.0
    with pytest.raises(UsageError, match="rewards has 1 entries, numbered from 0, so rewards.4 is none"):
        resolved("rewards: [math]", "rewards.4.weight=3")


def test_service_keys_in_a_roles_own_section(resolved):
    run = resolved("generator: {procs: 2}\nreward: {timeout_s: 5}", reward__procs="3", ref_model__with_gpus="false")
    services = run.config.services
    assert (services["generator"].procs, services["reward"].procs) == (2, 3)
    assert services["ref_model"].with_gpus is False and run.config.reward.timeout_s == 5.0
    assert set(services) == {"generator", "trainer", "ref_model", "reward"}


def test_off_by_n_is_max_policy_age(resolved):
    assert resolved("training: {off_by_n: 2}").config.training.max_policy_age == 2
    assert resolved("training: {off_by_n: 2}", "training.max_policy_age=1").config.training.max_policy_age == 1
    assert resolved("training: {off_by_n: 2, max_policy_age: 2}").config.training.max_policy_age == 2


def test_a_file_loss_is_checked_and_its_signature_says_what_it_needs(resolved, write):
    write(
        """
        class Mine:
            def __init__(self, clip_range: float = 0.2):
                self.clip_range = clip_range

            def forward(self, logprobs, ref_logprobs, advantages, padding_mask):
                return logprobs
        """,
        "mine.py",
    )
    run = resolved("loss: {use: './mine.py:Mine', clip_range: 0.3}")
    assert run.plan.needs_ref_logprobs and run.plan.loss.use.config == {"clip_range": 0.3}
    with pytest.raises(UsageError, match="c.yaml:4: .*`clip_rnage` is unknown; did you mean `clip_range`"):
        resolved("loss: {use: './mine.py:Mine', clip_rnage: 0.3}")


def test_the_seeds_custom_loss_resolves(resolved, write):
    write(
        """
        import torch
        import torch.nn as nn

        class CustomLoss(nn.Module):
            def __init__(self, clip_range: float = 0.2, beta: float = 0.1):
                super().__init__()
                self.clip_range = clip_range
                self.beta = beta

            def forward(
                self,
                logprobs: torch.Tensor,
                ref_logprobs: torch.Tensor,
                advantages: torch.Tensor,
                padding_mask: torch.Tensor,
            ) -> torch.Tensor:
                return logprobs
        """,
        "custom_loss.py",
    )
    run = resolved("loss: {use: ./custom_loss.py:CustomLoss, beta: 0.2}")
    assert run.plan.needs_ref_logprobs and run.plan.loss.use.config == {"beta": 0.2}
    assert run.plan.loss.name == "custom-loss"


def test_needs_are_collected(resolved):
    assert resolved("").plan.needs == {"groups"}
    assert resolved("loss: needs-ref").plan.needs_ref_logprobs
    assert "unfiltered-sampling" in resolved("algorithm: corrected").plan.needs
    assert resolved("grpo: {beta: 0.1}").plan.roles[-1] == "ref_model"


def test_default_rewards_are_said(resolved):
    assert any("no rewards are configured" in note for note in resolved("").notes)
    assert not any("no rewards" in note for note in resolved("rewards: [math]").notes)


def test_the_configuration_is_plain_data(resolved):
    run = resolved("grpo: {beta: 0.1}")
    assert pickle.loads(pickle.dumps(run.plan)) == run.plan
    assert attrs.asdict(run.config)["training"]["seed"] == 0


def test_the_algorithms_section_shows_what_holds(resolved):
    """Keys that a general section replaces have its values there too, with their source, also after a round trip."""
    run = resolved("grpo: {n_samples: 4, temperature: 0.7}\nsampling: {n: 2}\nkl: {beta: 0.25}")
    section = run.plan.algorithm.use.config
    assert (section["n_samples"], section["temperature"], section["beta"]) == (2, 0.7, 0.25)
    assert run.plan.sampling.n == 2 and run.plan.kl.beta == 0.25
    (row,) = explain(run, "grpo.n_samples")
    assert row.value == 2 and row.where.startswith("c.yaml")
