"""SmolLM2: fine-tuned by the recipe, graded, and taken on by GRPO."""

import json
import subprocess
import sys

import pytest

SMALL = ["evaluation.num_prompts=8", "training.batch_size=8", "monarch.startup_timeout=900"]


@pytest.fixture
def forge_host(tmp_path):
    def call(*args: str, **settings) -> tuple[str, dict]:
        given = [f"--set={key.replace('__', '.')}={value}" for key, value in settings.items()]
        command = [sys.executable, "-m", "forge_host.cli.main", *args, *(f"--set={text}" for text in SMALL), *given]
        done = subprocess.run(
            [*command, "--run-dir", str(tmp_path / args[0])], capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout, json.loads((tmp_path / args[0] / "summary.json").read_text())

    return call


@pytest.mark.slow
def test_grpo_goes_on_from_sft(forge_host, tmp_path) -> None:
    _, tuned = forge_host("sft", "sft_smollm2", training__max_steps=4, evaluation__interval=2)
    assert tuned["eval_loss_last"] < tuned["eval_loss_first"] - 0.2, tuned
    model = str(tmp_path / "sft" / "model")
    out, graded = forge_host("eval", "quickstart", "--model", model, "--json", evaluation__n_samples=2)
    printed = json.loads(out)
    assert printed.pop("report").endswith("report.html") and printed == graded
    assert graded["metrics"]["eval/num_prompts"] == 8 and "eval/pass@2" in graded["metrics"]
    _, trained = forge_host("run", "quickstart", model=model, training__max_steps=1, sampling__n=4)
    assert trained["steps"] == 1 and trained["weight_syncs_verified"] == 1
