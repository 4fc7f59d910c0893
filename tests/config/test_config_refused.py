"""Bad input: each mistake gives one sentence that says what, where and what to do, before anything starts."""

from pathlib import Path

import pytest

from forge_host.cli.main import main
from forge_host.config import checks, load_plugins, resolve, resolve_model
from forge_host.errors import PluginError, UsageError
from forge_host.plugins import PluginHost
from forge_host.types import Finding

FAKE_RL = Path(__file__).parent / "fake_rl.py"
BASE = "model: tiny\nlauncher: here\ntrackers: []\n"

BAD = {
    "unknown key": (
        "training: {learning_rat: 1}",
        "c.yaml:4: config key `training.learning_rat` is unknown; did you mean `learning_rate`",
    ),
    "unknown section": ("trainng: {seed: 1}", "c.yaml:4: config key `trainng` is unknown; did you mean `training`"),
    "unknown algorithm": (
        "ppo: {x: 1}",
        "c.yaml:4: section `ppo` is neither a part .* a loaded algorithm .*pip install forge-plugin-ppo",
    ),
    "unknown algorithm key": (
        "grpo: {n_sample: 1}",
        "c.yaml:4: algorithm `fake-rl/grpo` has no key `n_sample`; did you mean `n_samples`",
    ),
    "unknown component key": (
        "generator:\n  use: vllm\n  sped: 2",
        "c.yaml:6: generator `fake-rl/vllm` has no key `sped`; did you mean `speed`",
    ),
    "unknown service key": (
        "services: {trainer: {proc: 2}}",
        "c.yaml:4: config key `services.trainer.proc` is unknown; did you mean `procs`",
    ),
    "misspelt service key": ("trainer: {prcs: 2}", "trainer `fake-rl/titan` has no key `prcs`; did you mean `procs`"),
    "unknown role": (
        "services: {genrator: {procs: 2}}",
        "c.yaml:4: config key `services.genrator` is unknown; did you mean `generator`",
    ),
    "unknown dataset key": (
        "dataset: {path: arithmetic, streeming: true}",
        "c.yaml:4: dataset `builtin/arithmetic` has no key `streeming`",
    ),
    "unknown reward key": (
        "rewards: [{use: math, tol: 1}]",
        "c.yaml:4: reward `fake-rl/math` has no key `tol`; known keys: `tolerance`",
    ),
    "wrong type": ("training:\n  batch_size: four", "c.yaml:5: `training.batch_size` must be int, got 'four'"),
    "wrong type below": (
        "generator: {stops: [a, 1]}",
        "c.yaml:4: `generator.stops.1.` must be str, got 1; put quotes around it",
    ),
    "wrong number": ("training: {learning_rate: fast}", "c.yaml:4: `training.learning_rate` must be float, got 'fast'"),
    "out of range": ("training: {batch_size: 0}", "c.yaml:4: `training.batch_size` must be >= 1.*got.* 0"),
    "no such choice": (
        "training: {dtype: bfloat17}",
        "c.yaml:4: `training.dtype` must be one of 'bfloat16'.*did you mean `bfloat16`",
    ),
    "section as value": ("training: 3", "c.yaml:4: `training` is a section of keys, not 3"),
    "value as section": ("model2: {}", "c.yaml:4: config key `model2` is unknown; did you mean `model`"),
    "null where none may be": ("training: {seed: null}", "c.yaml:4: `training.seed` must be int, got null"),
    "two algorithms": ("grpo: {}\ndapo: {}", "c.yaml:5: sections `grpo` and `dapo` are two algorithms"),
    "another algorithm's section": (
        "algorithm: dapo\ngrpo: {beta: 1}",
        "c.yaml:5: `algorithm: dapo` and section `grpo` are two algorithms",
    ),
    "both names of one key": (
        "training: {off_by_n: 1, max_policy_age: 2}",
        "c.yaml:4: training.off_by_n 1 and .*max_policy_age 2",
    ),
    "procs given twice": (
        "trainer: {procs: 2}\nservices: {trainer: {procs: 3}}",
        "c.yaml:4: trainer.procs is 2 and services.trainer.procs is 3",
    ),
    "ref_model twice": (
        "ref_model: {procs: 1}\nservices: {ref_model: {procs: 1}}",
        "c.yaml:4: `ref_model` stands at the top and under",
    ),
    "missing data": ("dataset: nothing.jsonl", "c.yaml:4: dataset nothing.jsonl does not exist"),
    "data of an unknown kind": (
        "dataset: ./c.yaml",
        "c.yaml:4: dataset ./c.yaml is a file of a kind that nothing reads; known are .jsonl, .json, .parquet, .csv",
    ),
    "rewards that weigh nothing": (
        "rewards: {math: 0}",
        "the weights of the rewards add up to 0, and reward.mode is mean; give one a weight above 0",
    ),
    "dataset selector empty": ("dataset: {path: ''}", "c.yaml:4: `dataset.path` is a name or path"),
    "evaluation key": (
        "evaluation: {dataset: {lowest: 1}}",
        "c.yaml:4: dataset `builtin/arithmetic` has no key `lowest`",
    ),
    "evaluation prompt": (
        "evaluation: {dataset: {system: x}}",
        "c.yaml:4: `evaluation.dataset.system` is not set apart.*set dataset.system",
    ),
    "values that do not go together": (
        "training: {seed: 1}\ndataset:\n  path: arithmetic\n  low: 9\n  high: 2",
        "c.yaml:7: dataset `arithmetic`: low 9 is above high 2",
    ),
    "null list": ("rewards:", "c.yaml:4: `rewards` is empty; name one"),
    "no rewards": ("rewards: []", "c.yaml:4: `rewards` is empty; name one"),
    "reward entry": ("rewards: [{math: 1, thinking: 2}]", "c.yaml:4: an entry of `rewards` has no `use`"),
    "reward number": ("rewards: 3", "c.yaml:4: `rewards` is a list of component names, not 3"),
    "reward weight": ("rewards: [{use: math, weight: big}]", "c.yaml:4: `rewards.0.weight.* must be float, got 'big'"),
    "auto transport with keys": ("transport: {shm: true}", "c.yaml:4: `transport.shm` is set while transport is auto"),
    "loss is a number": ("loss: 3", "c.yaml:4: `loss` is a component's name or a section, not 3"),
    "plan check of a plugin": ("generator: {speed: 13}", "speed 13 is unlucky; take another"),
}
ILLEGAL = {
    "one sample": (
        "grpo: {n_samples: 1}",
        "advantage `fake-rl/grpo` compares .* and grpo.n_samples is 1; set grpo.n_samples to 2",
    ),
    "one sample by sampling": ("sampling: {n: 1}", "and sampling.n is 1; set sampling.n to 2"),
    "greedy": ("grpo: {temperature: 0}", "with grpo.temperature 0 they are all the same"),
    "filtered": ("loss: unfiltered\nsampling: {top_p: 0.9}", "loss `fake-rl/unfiltered` needs .* top_p is 0.9"),
    "filtered and corrected": (
        "algorithm: corrected\nsampling: {top_k: 9}",
        "correction.mode truncate needs .* top_k is 9",
    ),
    "no room": ("training: {seq_len: 64}", "grpo.max_tokens is 64 and training.seq_len is 64"),
    "too few rows": (
        "training: {batch_size: 1, gradient_accumulation_steps: 16}",
        "8 responses .* fewer than .* 16 x 1",
    ),
    "split of processes": (
        "parallelism: {tensor_parallel_degree: 2}",
        r"\(tensor 2\) needs a multiple of 2 trainer processes",
    ),
    "shard degree": ("parallelism: {data_parallel_shard_degree: 0}", "data_parallel_shard_degree is 0; set 1 or more"),
    "age below interval": ("training: {sync_interval: 4, max_policy_age: 1}", "up to 3 steps old.*max_policy_age is 1"),
    "correction without bound": ("correction: {mode: mask, high: null}", "correction.mode is mask without a bound"),
    "correction bounds": ("correction: {mode: mask, low: 3, high: 2}", "correction.low 3 is above correction.high 2"),
    "colocation": (
        "services: {generator: {colocate_with: trayner}}",
        "services.generator.colocate_with is trayner; name another role",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_refused_with_the_line(resolved, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        resolved(text)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), ILLEGAL.values(), ids=ILLEGAL)
def test_illegal_combinations_are_refused_and_listed_when_only_looking(resolved, text, message):
    with pytest.raises(UsageError, match=message):
        resolved(text)
    findings = resolved(text, check=False).findings
    assert [finding.level for finding in findings if finding.level != "note"] == ["error"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generator: nosuch", "c.yaml:4, generator.use: no generator is named `nosuch`"),
        ("rewards: [maht]", "c.yaml:4, rewards.0: no reward is named `maht`; did you mean `math`"),
        ("loss: {use: grpoo}", "c.yaml:4, loss.use: no loss is named `grpoo`; did you mean `grpo`"),
        ("dataset: aritmetic", "c.yaml:4, dataset.path: no dataset is named `aritmetic`; did you mean `arithmetic`"),
        ("algorithm: dappo", "c.yaml:4, algorithm: no algorithm is named `dappo`; did you mean `dapo`"),
        ("rewards: ./nofile.py:R", "c.yaml:4, rewards.0|file .*nofile.py does not exist"),
        ("dataset: builtin/nosuch", "no dataset is named `builtin/nosuch`"),
    ],
)
def test_unknown_components(resolved, text, message):
    with pytest.raises(PluginError, match=message) as caught:
        resolved(text)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.batch_size=x", "--set training.batch_size=x: `training.batch_size` must be int, got 'x'"),
        ("training", "--set training has no value; write --set training=VALUE"),
        ("=3", "--set =3: `` is not a configuration key"),
        ("training..seed=3", "is not a configuration key"),
        ("training.seed.x=3", "--set training.seed.x=3: .*`training.seed` must be int"),
        ("nosuch.key=3", "--set nosuch.key=3: section `nosuch` is neither"),
        ("rewards=[math", "--set rewards=.math:1: not valid YAML"),
    ],
)
def test_bad_overrides(resolved, override, message):
    with pytest.raises(UsageError, match=message):
        resolved("", override)


def test_a_key_below_a_plain_value_of_the_command_line(resolved):
    with pytest.raises(UsageError, match="--set training.seed.x=3: key is below one that --set training.seed=1 gave"):
        resolved("", "training.seed=1", "training.seed.x=3")


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nosuch", "c.yaml:1: model folder ./nosuch does not exist; give a local Hugging Face folder"),
        ("~/no/such/folder", "model folder ~/no/such/folder does not exist"),
        ("/no/such", "model folder /no/such does not exist"),
        ("empty", "model folder empty has no config.json"),
        (
            "smolm",
            r"model `smolm` is no folder here, no hub name \(owner/name\) and no model component \(`fake-rl/tiny`",
        ),
    ],
)
def test_missing_models(host, write, tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        resolve(write(f"model: {name}\nlauncher: here\ntrackers: []\n"), host=host)


def test_no_model_and_no_configuration(host, write):
    with pytest.raises(UsageError, match="c.yaml: config key `model` is required; add `model: FOLDER`"):
        resolve(write("launcher: here\n"), host=host)
    with pytest.raises(UsageError, match="config key `model` is required"):
        resolve(None, host=host)
    with pytest.raises(UsageError, match="configuration quikstart does not exist; did you mean `quickstart`"):
        resolve("quikstart", host=host)
    with pytest.raises(UsageError, match="configuration c.yml does not exist; did you mean `c.yaml`"):
        resolve("c.yml", host=host)


def test_a_model_is_located_only_when_asked(host, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder), host)() == str(folder)
    assert resolve_model("tiny", host)() == "/models/tiny"
    assert callable(resolve_model("org/name", host))


def test_a_hub_model_that_cannot_be_had_says_how_to_go_on(host, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    from forge_host.errors import RunError

    with pytest.raises(RunError, match="model `org/none` is not in the local cache.*give the local folder"):
        resolve_model("org/none", host)()


# --- plugins and checks ---------------------------------------------------------------------------------------------


def test_a_section_of_a_broken_plugin_says_why(write, tmp_path):
    from forge_host.plugins import PluginHost

    (tmp_path / "brk.py").write_text("raise RuntimeError('no licence')\n")
    host = PluginHost.load((), files=(str(tmp_path / "brk.py"),), strict=False)
    with pytest.raises(PluginError, match="c.yaml:2: section `brk` belongs to plugin `brk` .*no licence"):
        resolve(write("model: ./x\nbrk: {a: 1}\n"), host=host)


def test_a_hub_dataset_without_its_component_names_what_is_missing(write):
    without = FAKE_RL.read_text().replace('[spec("hf", "HubDataset")]', "[]")
    host = load_plugins(plugins=[], plugin_files=[write(without, "without.py")])
    message = (
        "c.yaml:4: Hugging Face dataset `openai/gsm8k` needs the dataset component `hf`, and no dataset is named `hf`"
    )
    with pytest.raises(UsageError, match=message):
        resolve(write(BASE + "dataset: openai/gsm8k\n"), host=host)


def test_rules_can_be_added(resolved):
    def rule(plan):
        if plan.config.training.seed == 666:
            yield Finding("error", "seed 666 is refused", "take another")

    checks.append(rule)
    try:
        assert resolved("").config.training.seed == 0
        with pytest.raises(UsageError, match="seed 666 is refused; take another"):
            resolved("training: {seed: 666}")
    finally:
        checks.remove(rule)


def test_warnings_become_notes(resolved):
    assert "speed 7 is slow; take another" in resolved("generator: {speed: 7}").notes
    notes = resolved("services: {ref_model: {procs: 2}}").notes
    assert any("services.ref_model is configured but not started" in note for note in notes)
    assert not any("ref_model" in note for note in resolved("services: {ref_model: {procs: 2}}\ngrpo: {beta: 1}").notes)


def test_plugins_named_in_the_configuration_are_loaded(write, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from forge_host.api import hookimpl\nFORGE_API = '1.0'\n@hookimpl\ndef forge_run_started(run):\n    pass\n"
    )
    config = write("model: x/y\nplugins: []\nplugin_files: [../conf/../mine.py]\n", "conf/c.yaml")
    assert [record.name for record in load_plugins(config).records if record.state == "loaded"] == ["builtin", "mine"]
    with pytest.raises(PluginError, match="plugin `nosuch` is not installed"):
        load_plugins(config, plugins=["nosuch"])
    with pytest.raises(UsageError, match="d.yaml:1: `plugins` must be a list of names, got 3"):
        load_plugins(write("plugins: 3\n", "d.yaml"))


def test_combinations_name_the_line_of_the_key(resolved):
    with pytest.raises(UsageError, match=r"^c.yaml:\d+: .*training.seq_len is 8"):
        resolved("training:\n  seq_len: 8")


def test_two_plugins_with_one_component_are_named(write, tmp_path):
    copy = tmp_path / "other_rl.py"
    copy.write_text(FAKE_RL.read_text())
    host = PluginHost.load((), files=(str(FAKE_RL), str(copy)), strict=True)
    with pytest.raises(PluginError, match="model `tiny` is offered by .*write `fake-rl/tiny` or `other-rl/tiny`"):
        resolve(write("model: tiny\n"), host=host)
    with pytest.raises(PluginError, match="c.yaml:2, algorithm: algorithm `grpo` is offered by .*fake-rl/grpo"):
        resolve(write("model: fake-rl/tiny\ngrpo: {beta: 0.1}\n"), host=host)


def test_a_key_one_level_too_high_is_told_where_it_belongs(host, tmp_path):
    with pytest.raises(UsageError, match=r"config key `max_steps` is unknown; did you mean `training.max_steps`\?"):
        resolve(None, overrides=["max_steps=3"], host=host)


def test_a_recipes_name_means_the_shipped_recipe(write, tmp_path):
    from forge_host.config.recipes import find_config, recipe_names

    write("model: other\n", "quickstart")
    assert "quickstart" in recipe_names()
    assert find_config("quickstart").parent.name == "recipes"
    assert find_config("./quickstart").resolve() == tmp_path / "quickstart"


def test_a_dry_run_refuses_a_transport_that_the_places_do_not_suit(capsys):
    on_cpu = ("--set", "services.trainer.with_gpus=false")
    assert main(["run", "quickstart", "--dry-run", *on_cpu, "--set", "transport.use=nccl"]) == 2
    assert "transport nccl needs a GPU for each process" in capsys.readouterr().err
    assert main(["run", "quickstart", "--dry-run", *on_cpu]) == 0
    assert "transport: builtin/shm (trainer or generator are on the CPU" in capsys.readouterr().out
