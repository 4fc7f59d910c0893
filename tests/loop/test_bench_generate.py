"""`forge-host bench generate` on a generator that takes a fixed time, so that its ratio is known."""

import json
from pathlib import Path

import counting_generator
import pytest
from click.testing import CliRunner

from forge_host.cli.bench_generate import generate
from forge_host.errors import RunError, UsageError
from forge_host.loop.bench_generate import bench_generate

HERE = Path(counting_generator.__file__)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50}))
    return str(tmp_path)


def test_ratio_to_the_engine_alone(model):
    """Two prompts at once take the time of one, so both sides make 2 x 2 x 100 tokens in 0.2 s."""
    options = ["--model", model, "--generator", f"{HERE}:Counting", "--sequences", "4", "-n", "2", "--tokens", "100"]
    done = CliRunner().invoke(generate, [*options, "--repeats", "2", "--json"], catch_exceptions=False)
    found = json.loads(done.output.splitlines()[-1])
    assert 1400 < found["alone"] <= 2000 and 0.5 < found["ratio"] < 1.05, found
    assert found["sequences"] == 4 and found["tokens"] == 100


def test_what_goes_wrong_is_said(model, tmp_path):
    counting = f"{HERE}:Counting"
    with pytest.raises(UsageError, match="has no config.json"):
        bench_generate(str(tmp_path / "no"), generator=counting)
    with pytest.raises(UsageError, match="5 sequences are no multiple of 2"):
        bench_generate(model, generator=counting, sequences=5, n=2)
    with pytest.raises(RunError, match="the engine alone failed: ValueError: no such model"):
        bench_generate(model, generator=f"{HERE}:Broken", sequences=2, n=2)
    with pytest.raises(RunError, match="made 1 tokens instead of 8"):
        bench_generate(model, generator=f"{HERE}:Stingy", sequences=2, n=2, tokens=4)
