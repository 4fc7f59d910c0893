"""The command line: what it imports, its exit codes, `config` and `run --dry-run`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from forge_host.cli import main as cli_main
from forge_host.cli.bench import BENCHES, bench
from forge_host.cli.main import main

FAKE_RL = str(Path(__file__).parent / "fake_rl.py")
FAKES = ("--plugins", "", "--plugin-file", FAKE_RL)
HEAVY = ("torch", "monarch", "vllm", "transformers", "torchtitan")


@pytest.fixture
def config(write):
    return write("model: tiny\nlauncher: here\ntrackers: []\nrewards: [math]\ntraining:\n  seed: 5\n")


def run_python(code, *args, cwd=None, **env):
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **env},
    )


def modules_after(*args, cwd=None):
    """Heavy modules that a command line has imported by its end, and its standard output."""
    code = (
        "import json, sys\nfrom forge_host.cli.main import main\ncode = main(sys.argv[1:])\n"
        f"print(json.dumps([code, [m for m in {HEAVY} if m in sys.modules]]), file=sys.stderr)"
    )
    done = run_python(code, *args, cwd=cwd)
    code, heavy = json.loads(done.stderr.strip().splitlines()[-1])
    assert code == 0, done.stderr
    return heavy, done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["config", "show", "c.yaml", *FAKES],
        ["run", "c.yaml", "--dry-run", *FAKES],
        ["config", "explain", "c.yaml", "training.seed", *FAKES],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(config, tmp_path, args):
    heavy, output = modules_after(*args, cwd=tmp_path)
    assert heavy == [] and output


def test_help_lists_every_command_and_imports_none_of_them():
    code = (
        "import sys\nfrom forge_host.cli.main import main, COMMANDS\nmain(['--help'])\n"
        "print([t for t, _ in COMMANDS.values() if t.partition(':')[0] in sys.modules], file=sys.stderr)"
    )
    done = run_python(code)
    assert done.stderr.strip() == "[]"
    for name in cli_main.COMMANDS:
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)


def test_every_command_of_the_table_exists():
    for name in cli_main.COMMANDS:
        assert cli_main.cli.get_command(None, name).name == name


def test_every_benchmark_of_the_table_exists():
    for name in BENCHES:
        assert bench.get_command(None, name).name == name
    code = "import sys\nfrom forge_host.cli.main import main\nmain(['bench'])\nprint('torch' in sys.modules)"
    assert run_python(code).stdout.endswith("False\n")
    assert bench.get_command(None, "nosuch") is None


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"forge-host \d+\.\d+\.\d+, plugin API \d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "nosuch", *FAKES], "error: configuration nosuch does not exist"),
        (
            ["run", "c.yaml", *FAKES, "--set", "training.sed=1"],
            "error: --set training.sed=1: config key `training.sed` is unknown",
        ),
        (["run", "c.yaml", *FAKES, "--set", "grpo.n_samples=1"],
         "error: --set grpo.n_samples=1: advantage `fake-rl/grpo` compares"),
        (["run", "c.yaml", *FAKES, "--trainer.procs"], "Error: option --trainer.procs needs a value"),
        (["run", "c.yaml", *FAKES, "--trainer.procs", "--dry-run"], "Error: option --trainer.procs needs a value"),
        (
            ["run", "c.yaml", *FAKES, "--trainr.procs", "2"],
            "error: --trainr.procs 2: config key `trainr` is unknown; did you mean `trainer`?",
        ),
        (["run", "c.yaml", *FAKES, "--dryrun"], "Error: No such option '--dryrun'. Did you mean '--dry-run'"),
        (["run", "c.yaml", *FAKES, "-q"], "Error: No such option '-q'"),
        (["run", "c.yaml", "--plugins", "", "--plugin-file"], "Option '--plugin-file' requires an argument"),
        (["rnu"], "Error: no command `rnu`; did you mean `run`?"),
        (["config", "explain", "c.yaml", "training.sed", *FAKES], "error: config key `training.sed` is unknown"),
    ],
)
def test_usage_errors_exit_with_2(config, capsys, args, message):
    assert main(args) == 2
    captured = capsys.readouterr()
    assert (
        message in captured.err.replace("(Did you mean one of: ", "Did you mean ") and "Traceback" not in captured.err
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "c.yaml", "--plugins", "nosuch"], "error: --plugins: plugin `nosuch` is not installed"),
        (["run", "c.yaml", *FAKES, "--generator", "nosuch"], "no generator is named `nosuch`"),
        (["run", "c.yaml", "--plugins", "", "--plugin-file", "nofile.py"], "nofile.py does not exist"),
    ],
)
def test_plugin_errors_exit_with_3(config, capsys, args, message):
    assert main(args) == 3
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.strip().splitlines()) == 1


def test_traceback_only_with_forge_debug(config, capsys, monkeypatch):
    monkeypatch.setenv("FORGE_DEBUG", "1")
    assert main(["run", "nosuch", *FAKES]) == 2
    captured = capsys.readouterr().err
    assert "Traceback" in captured and "give a YAML file or one of the recipes `quickstart`" in captured


def test_a_bug_is_called_a_bug_in_one_line(config, capsys, monkeypatch):
    from forge_host.plugins import PluginHost

    def broken(*args, **kwargs):
        raise KeyError("surprise")

    monkeypatch.setattr(PluginHost, "load", broken)
    assert main(["config", "show", "c.yaml"]) == 4
    assert re.fullmatch(
        r"error: this is a bug \(KeyError: 'surprise', at test_cli_config.py:\d+\); .*\n", capsys.readouterr().err
    )


def test_ctrl_c_exits_with_130(config, capsys, monkeypatch):
    from forge_host.plugins import PluginHost

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(PluginHost, "load", interrupted)
    assert main(["config", "show", "c.yaml"]) == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")


def test_a_closed_pipe_is_no_error(config, tmp_path):
    code = "import sys\nfrom forge_host.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    first, second = os.pipe()
    os.close(first)
    with os.fdopen(second, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code, "config", "show", "c.yaml", *FAKES],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
    assert done.stderr == "" and done.returncode == 1


def test_config_show_is_a_configuration(config, capsys):
    assert main(["config", "show", config, *FAKES, "--trainer.procs", "4", "--set", "training.seed=9"]) == 0
    shown = capsys.readouterr().out
    Path("again.yaml").write_text(shown)
    assert main(["config", "show", "again.yaml"]) == 0
    assert capsys.readouterr().out == shown
    assert "plugins: []\n" in shown and f"- {FAKE_RL}\n" in shown


def test_config_show_as_json(config, capsys):
    assert main(["config", "show", config, *FAKES, "--json", "--reward.procs=2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["training"]["seed"] == 5 and data["services"]["reward"]["procs"] == 2


def test_config_show_shows_what_would_not_run(config, capsys):
    assert main(["config", "show", config, *FAKES, "--grpo.n_samples", "1"]) == 0
    captured = capsys.readouterr()
    assert "n_samples: 1" in captured.out
    assert captured.err.startswith("this would not run: advantage `fake-rl/grpo` compares")


def test_config_explain(config, capsys):
    args = ["config", "explain", config, "training.seed", *FAKES, "--set", "training.seed=9"]
    assert main(args) == 0
    assert capsys.readouterr().out == "training.seed: 9  <- --set training.seed=9\n    instead of 5  <- c.yaml:6\n"
    assert main([*args, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "key": "training.seed",
        "value": 9,
        "source": "--set training.seed=9",
        "overrode": [{"value": 5, "source": "c.yaml:6"}],
    }
    assert main(["config", "explain", config, *FAKES]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 80


def test_options_in_any_place_and_order(config, capsys):
    assert main(["config", "show", "--trainer.procs", "2", *FAKES, config, "--training.seed=-3", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["services"]["trainer"]["procs"] == 2 and data["training"]["seed"] == -3


def test_several_configurations_merge_left_to_right(config, write, capsys):
    write("training: {max_steps: 3, seed: 6}\n", "over.yaml")
    assert main(["config", "show", config, "--config", "over.yaml", *FAKES, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["training"]["max_steps"], data["training"]["seed"], data["model"]) == (3, 6, "tiny")


def test_dry_run_places_the_roles_on_the_launchers_hosts(config, capsys):
    asked = ["--launcher", "slurm", "--set", "launcher.nodes=2", "--set", "launcher.gpus_per_node=4"]
    assert main(["run", config, *FAKES, "--dry-run", *asked, "--trainer.procs", "4", "--generator.procs", "2"]) == 0
    out = capsys.readouterr().out
    assert "trainer    0        4      node 0  GPU 0,1,2,3\n" in out
    assert "generator  0        2      node 1  GPU 0,1\n" in out and "reward     0        1      node" in out
    assert "4 GPUs), node 1" in out
    asked += ["--set", "trainer.with_gpus=true"]
    assert main(["run", config, *FAKES, "--dry-run", *asked, "--trainer.procs", "12"]) == 2
    assert "12 GPUs asked for (trainer 12 x 1), 8 there (2 hosts x 4)" in (err := capsys.readouterr().err)
    assert "set services.trainer.procs: 8 or set launcher.nodes: 3" in err
    workers = ["--launcher", "attach", "--set", "launcher.workers=[a:1,b:2]"]
    assert main(["run", config, *FAKES, "--dry-run", *workers]) == 0
    assert "placed when the hosts are asked what they have (builtin/attach)" in capsys.readouterr().out


def test_dry_run_prints_the_plan_and_starts_nothing(config, capsys):
    assert main(["run", config, *FAKES, "--dry-run", "--dapo.beta", "0.5", "--generator.procs", "2"]) == 0
    captured = capsys.readouterr()
    for text in (
        "algorithm fake-rl/dapo",
        "generator  0        2 ",
        "ref_model  0        1 ",
        "CPU, any core",
        "hosts: ",
        "reward     fake-rl/math",
        "shaping    fake-rl/overlong",
        "8 prompts x 8 responses = 64 sequences",
        "needs        groups, ref_logprobs",
        "dry run: nothing was started",
    ):
        assert text in captured.out
    assert all(line == line.rstrip() for line in captured.out.splitlines())
    assert not Path("runs").exists()


def test_locked_refuses_drift(config, capsys):
    from forge_host.plugins import PluginHost

    lock = Path("plugins.lock")
    PluginHost.load((), files=(FAKE_RL,)).lock().write(lock)
    assert main(["run", config, *FAKES, "--dry-run", "--locked", str(lock)]) == 0
    data = json.loads(lock.read_text())
    data["plugins"][-1]["sha256"] = "0" * 64
    lock.write_text(json.dumps(data))
    assert main(["run", config, *FAKES, "--dry-run", "--locked", str(lock)]) == 3
    assert "plugins differ from the lock" in capsys.readouterr().err
    assert main(["run", config, *FAKES, "--dry-run", "--locked", "nosuch.lock"]) == 2


def test_plugins_add_commands(tmp_path, monkeypatch, capsys):
    (tmp_path / "forge_plugin_hello-1.0.dist-info").mkdir()
    (tmp_path / "forge_plugin_hello-1.0.dist-info/METADATA").write_text("Name: forge-plugin-hello\nVersion: 1.0\n")
    (tmp_path / "forge_plugin_hello-1.0.dist-info/entry_points.txt").write_text(
        "[forge_host.plugins]\nhello = forge_plugin_hello\n"
    )
    (tmp_path / "forge_plugin_hello.py").write_text(
        "from forge_host.api import CommandSpec, hookimpl\nFORGE_API = '1.0'\n"
        "@hookimpl\ndef forge_commands(host):\n"
        "    yield CommandSpec('hello', 'hello_command:hello', 'greet')\n"
        "    yield CommandSpec('broken', 'hello_command:x', 'no')\n"
    )
    (tmp_path / "hello_command.py").write_text(
        "import click\n@click.command()\n@click.argument('name')\ndef hello(name):\n    print('hello', name)\nx = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["hello", "world"]) == 0
    assert capsys.readouterr().out == "hello world\n"
    assert main(["--help"]) == 0
    assert "Commands of plugins" in capsys.readouterr().out
    assert main(["broken"]) == 3
    assert "is int, not a click command" in capsys.readouterr().err


# --- the schema -----------------------------------------------------------------------------------------------------


@pytest.fixture
def schema(host):
    from forge_host.config.jsonschema import config_schema

    return config_schema(host)


def test_the_schema_is_valid_and_accepts_what_resolves(schema, resolved):
    from forge_host.config.files import load_text

    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for text in (
        "",
        "grpo: {beta: 0.1}\nloss: dapo\nrewards: math",
        "generator: {use: vllm, speed: 2, procs: 3}",
        "aggregation: token-mean",
        "ref_model: {with_gpus: false}",
        "reward: {procs: 2, mode: sum}",
    ):
        run = resolved(text)
        validator.validate(load_text(run.to_yaml(), "r").plain)
        validator.validate({"model": "tiny", **load_text(text, "t").plain})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"model": 3},
        {"model": "x", "training": {"batch_size": "four"}},
        {"model": "x", "training": {"sed": 1}},
        {"model": "x", "training": {"batch_size": 0}},
        {"model": "x", "services": {"trayner": {}}},
        {"model": "x", "grpo": {"bta": 1}},
        {"model": "x", "training": {"dtype": "f8"}},
        {"model": "x", "kl": {"estimator": "k9"}},
    ],
    ids=json.dumps,
)
def test_the_schema_refuses_what_does_not_resolve(schema, data):
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(data))


def test_the_schema_documents_every_key_and_component(schema):
    for name, section in schema["properties"].items():
        assert section.get("description") or "$ref" in section, name
        for key, field in section.get("properties", {}).items():
            assert field.get("description") or field.get("type") == "object", f"{name}.{key}"
    speed = schema["$defs"]["components"]["generator"]["fake-rl/vllm"]["properties"]["speed"]
    assert speed == {"type": "integer", "minimum": 1, "description": "how fast", "default": 1}
    assert schema["properties"]["training"]["properties"]["weight_sync_timeout"]["description"].endswith("(s)")


def test_config_schema_prints_json(capsys):
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_resume_wants_a_run_with_a_checkpoint(config, write, capsys):
    assert main(["run", "--resume", "nosuch", *FAKES]) == 2
    assert "--resume: nosuch is not a run directory" in capsys.readouterr().err
    write("model: tiny\nlauncher: here\ntrackers: []\n", "run/config.resolved.yaml")
    assert main(["run", "--resume", "run", *FAKES]) == 2
    assert "--resume: run has no good checkpoint; set checkpoint.interval" in capsys.readouterr().err
    assert main(["run", "--resume", "run", "--run-dir", "other", *FAKES]) == 2
    assert "--resume goes on in its own run directory" in capsys.readouterr().err


def test_a_dry_run_looks_at_the_run_directory_too(config, capsys, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "metrics.jsonl").touch()
    (tmp_path / "file").touch()
    for name, words in (("taken", "is not empty"), ("file", "is a file")):
        assert main(["run", "c.yaml", *FAKES, "--dry-run", "--run-dir", str(tmp_path / name)]) == 2
        assert f"run directory {tmp_path / name} {words}" in capsys.readouterr().err
    assert main(["run", "c.yaml", *FAKES, "--dry-run", "--run-dir", str(tmp_path / "fresh")]) == 0
    assert not (tmp_path / "fresh").exists()
