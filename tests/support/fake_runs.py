"""Fixtures of whole runs: a tiny model folder whose tokens are the letters a to p, and `fake_run`, which runs the loop
on the table model. A conftest imports them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_none_left

import forge_host.testing.faults

ROLES = Path(__file__).parents[1] / "loop" / "fake_roles.py"
WITHOUT_REPORT = Path(__file__).with_name("without_report.py")


def write_letters_model(path: Path) -> str:
    """A Hugging Face folder with a letter tokenizer; token i is the i-th letter, as the fakes write it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {chr(ord("a") + i): i for i in range(16)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="b"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="a").save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "table", "vocab_size": 16}))
    return str(path)


@pytest.fixture(scope="session")
def letters_model(tmp_path_factory) -> str:
    return write_letters_model(tmp_path_factory.mktemp("letters"))


@pytest.fixture
def fake_config(letters_model, tmp_path):
    """Writes a configuration of the table model; keyword arguments replace sections."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": w, "answer": "b"}) + "\n" for w in ("cab", "bad", "face", "deaf")))

    def write(**sections) -> str:
        config = {
            "name": "fake",
            "model": letters_model,
            "dataset": {"path": str(prompts), "chat": False},
            "rewards": [f"{ROLES}:share_of_b"],
            "training": {"batch_size": 4, "max_steps": 3, "seq_len": 64, "verify_weight_sync": True},
            "algorithm": {"use": "fake-roles/fake", "n_samples": 8, "max_tokens": 8},
            "generator": {"use": "fake-roles/fake"},
            "trainer": {"use": "fake-roles/fake"},
            "run_dir": str(tmp_path / "runs"),
            "monarch": {"shutdown_timeout": 5},
        }
        for name, value in sections.items():
            config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
        path = tmp_path / "fake.yaml"
        path.write_text(json.dumps(config))
        return str(path)

    return write


class Outcome:
    """A finished `forge-host run`."""

    def __init__(self, done: subprocess.CompletedProcess, runs: Path) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        found = sorted(path.parent for path in runs.glob("*/config.resolved.yaml"))
        self.dir = found[-1] if found else None

    @property
    def summary(self) -> dict:
        return json.loads((self.dir / "summary.json").read_text())

    @property
    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]

    @property
    def rollouts(self) -> list[dict]:
        return [json.loads(line) for line in (self.dir / "rollouts" / "rollouts.jsonl").read_text().splitlines()]


@pytest.fixture
def fake_run(fake_config, tmp_path):
    """`forge-host run` of the table model as a process of its own; checks that it leaves none behind."""

    def run(
        *args: str, command: str = "run", timeout: float = 300, faults: str = "", wrap=list, report=False, **sections
    ) -> Outcome:
        """`faults` is FORGE_FAULTS; `wrap` makes another command of the command. The timeout only ends a hang: a busy
        machine may take ten times as long as an idle one."""
        program = ["-m", "forge_host.cli.main"] if report else [str(WITHOUT_REPORT)]
        command = [sys.executable, *program, command, fake_config(**sections)]
        command += ["--plugin-file", str(ROLES), *args]
        if faults:
            command += ["--plugin-file", forge_host.testing.faults.__file__]
        command = wrap(command)
        env = {**os.environ, "FORGE_TEST_MARK": str(tmp_path), "FORGE_FAULTS": faults}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env)
        assert_none_left(str(tmp_path))
        return Outcome(done, tmp_path / "runs")

    return run
