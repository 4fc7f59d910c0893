"""Algorithms as packages: small, exact by name, composable, refused when a combination makes no sense."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from forge_host.config import resolve
from forge_host.errors import UsageError
from forge_host.plugins import PluginHost
from forge_host.testing import SamplerContract, evaluate_advantage, load_component

PLUGINS = Path(__file__).parents[2] / "plugins"
PACKAGES = ("grpo", "dapo", "cispo", "gspo", "sapo", "reinforce")


def lines_of_code(path: Path) -> int:
    """Lines that hold code: no comments, no docstrings, no blank lines."""
    source = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in nothing]
    return len({line for t in code for line in range(t.start[0], t.end[0] + 1)} - docstrings)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_plugin_has_at_most_100_lines_of_code(name: str) -> None:
    files = sorted((PLUGINS / f"forge-plugin-{name}" / "src").rglob("*.py"))
    count = sum(map(lines_of_code, files))
    assert 10 < count <= 100


def test_presets_are_their_papers() -> None:
    def parts(name: str) -> tuple[object, ...]:
        p = load_component("algorithm", name).build()
        clip = p.loss.config.get("clip_low"), p.loss.config.get("clip_high")
        return p.aggregation.mode, p.kl.beta, p.kl.placement, clip

    assert parts("grpo") == ("sequence-mean", 0.04, "loss", (0.2, 0.2))
    assert parts("dr-grpo") == ("fixed-length", 0.0, "loss", (0.2, 0.2))
    assert parts("dapo") == ("token-mean", 0.0, "loss", (0.2, 0.28))
    assert parts("cispo") == ("token-mean", 0.0, "loss", (None, 4.0))
    assert parts("gspo") == ("sequence-mean", 0.0, "loss", (3e-4, 4e-4))
    assert parts("gspo-token") == ("sequence-mean", 0.0, "loss", (3e-4, 4e-4))
    assert parts("sapo") == ("sequence-mean", 0.0, "loss", (None, None))
    assert parts("rloo") == ("sequence-mean", 0.05, "reward", (0.2, 0.2))
    assert parts("reinforce-pp") == ("token-mean", 0.001, "reward", (0.2, 0.2))


def test_seed_keys_reach_the_parts() -> None:
    keys = {"n_samples": 4, "clip_low": 0.1, "clip_high": 0.28, "beta": 0.1, "temperature": 0.7}
    parts = load_component("algorithm", "grpo", keys).build()
    assert parts.sampling.n == 4 and parts.sampling.temperature == 0.7 and parts.kl.beta == 0.1
    assert parts.loss.config["clip_low"] == 0.1 and parts.loss.config["clip_high"] == 0.28


def test_algorithms_and_losses_load_no_torch() -> None:
    code = """
        import sys
        from forge_host.api import Use
        from forge_host.plugins import PluginHost
        host = PluginHost.load()
        for kind in ("algorithm", "loss", "advantage", "sampler"):
            for entry in host.entries(kind):
                built = host.build(kind, Use(entry.ref))
                built.build() if kind == "algorithm" else None
        import forge_host.rl.checks, forge_host.config.rules
        sys.exit("torch was imported" if "torch" in sys.modules else 0)
    """
    import textwrap

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["SimpleGRPOLoss", "ReinforceLoss"])
def test_seed_imports_say_what_to_install(name: str) -> None:
    package = {"SimpleGRPOLoss": "grpo", "ReinforceLoss": "reinforce"}[name]
    code = f"""
import sys
class Missing:
    def find_spec(self, name, *_):
        if name == "forge_plugin_{package}":
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Missing())
try:
    from forge_host.losses import {name}
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert f"pip install forge-plugin-{package}" in done.stdout, done.stdout + done.stderr


def test_group_of_one_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="advantage `rloo`: a group has one response.*raise n_samples to 2"):
        evaluate_advantage("rloo", [1.0, 0.0, 1.0], [0, 0, 1])


@pytest.mark.parametrize("shape", [([1.0, 0.0], [0]), ([], [])], ids=["lengths", "empty"])
def test_advantage_inputs_of_another_shape(shape: tuple[list[float], list[int]]) -> None:
    with pytest.raises(UsageError, match="advantage `grpo`: .*has shape"):
        evaluate_advantage("grpo", *shape)


class TestGroupSampler(SamplerContract):
    ref = "builtin/group"
    keeps = [[1.0, 1.0], [0.0, 1.0], [None, 1.0, 1.0], [0.5]]
    drops = [[None, 1.0], [None, None, 0.0]]


class TestGroupSamplerThatDropsEqual(SamplerContract):
    ref = "builtin/group"
    config = {"drop_equal": True}
    keeps = [[0.0, 1.0]]
    drops = [[1.0, 1.0], [0.7, 0.7, 0.7]]


# --- combinations, found before any process starts ---


def findings(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {tmp_path}\n{text}")
    (tmp_path / "config.json").write_text("{}")
    from forge_host.config.rules import run_checks

    try:
        plan = resolve([str(path)], host=PluginHost.load()).plan
    except UsageError as error:
        return [f"error: {error}"]
    return [f"{f.level}: {f.message}; {f.fix}" for f in run_checks(plan)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algorithm: gspo\nadvantage: {use: reinforce-pp, gamma: 0.9}\n", "error: loss `gspo/gspo` has one ratio"),
        ("algorithm: reinforce-pp\nloss: gspo\n", "it takes the KL of each token"),
        ("algorithm: rloo\nadvantage: {use: reinforce-pp}\n", "error: loss `reinforce/rloo` has one ratio"),
        ("algorithm: grpo\nloss: simple-grpo\n", "warning: loss `grpo/simple-grpo` has its own KL penalty (beta 0.1)"),
        ("algorithm: cispo\nkl: {beta: 0.1, bias_correction: true, placement: reward}\n", ":3: kl.bias_correction"),
        ("algorithm: cispo\ncispo: {correction: mask, old_policy: generator}\n", "every weight would be 1"),
        ("algorithm: sapo\ntraining: {max_policy_age: 2}\n", "warning: training.max_policy_age is 2, and nothing"),
        ("algorithm: sapo\nsapo: {temperature: 0.0}\n", "with sapo.temperature 0 they are all the same"),
        ("algorithm: dapo\ndapo: {correction: truncate, top_p: 0.9}\n", "needs the log-probabilities of unfiltered"),
        ("algorithm: grpo\ngrpo: {n_samples: 1}\n", "c.yaml:3: advantage `grpo/grpo` compares"),
    ],
    ids=["gamma", "token-kl", "rloo", "two-betas", "bias", "bypass", "stale", "greedy", "filtered", "one"],
)
def test_senseless_combinations(tmp_path: Path, text: str, expected: str) -> None:
    found = findings(tmp_path, text)
    assert any(expected in line for line in found), found


@pytest.mark.parametrize(
    "text",
    [
        "algorithm: gspo\nadvantage: {use: rloo}\n",
        "algorithm: gspo-token\nadvantage: {use: reinforce-pp, gamma: 0.9}\n",
        "algorithm: gspo\nadvantage: {use: reinforce-pp}\n",
        "algorithm: cispo\ncispo: {old_policy: generator}\ntraining: {max_policy_age: 2}\n",
        "algorithm: reinforce\ntraining: {max_policy_age: 2}\n",
    ],
)
def test_sensible_combinations(tmp_path: Path, text: str) -> None:
    assert [line for line in findings(tmp_path, text) if not line.startswith("note")] == []
