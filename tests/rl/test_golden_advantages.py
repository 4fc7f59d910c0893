"""Every reference value of `tests/golden/advantages_kl_overlong.json`: advantages, KL, entropy, overlong punishment.

Advantages are compared in float64 at 1e-9 of the batch's largest advantage. Records that a library computed in float32
(their own distance from the exact formula is above 1e-9) are compared at 1e-6.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_host.rl import kl_estimate, token_logprobs
from forge_host.testing import evaluate_advantage, load_component
from forge_host.types import KL

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "advantages_kl_overlong.json").read_text())
INPUTS = json.loads((FOLDER / "losses.json").read_text())["input_sets"]
RECORDS = {record["name"]: record for record in GOLDEN["advantages"]}

VERL = {"eps": 1e-6, "lone": "reward"}
TRL = {"eps": 1e-4}
#: record without its input's name -> (advantage component, its keys)
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "verl_grpo_stdTrue": ("grpo/grpo", VERL),
    "verl_grpo_stdFalse": ("grpo/dr-grpo", {"lone": "reward"}),
    "verl_grpo_vectorized_stdTrue": ("grpo/grpo", VERL),
    "verl_grpo_vectorized_stdFalse": ("grpo/dr-grpo", {"lone": "reward"}),
    "verl_rloo": ("reinforce/rloo", {"lone": "reward"}),
    "verl_rloo_vectorized": ("reinforce/rloo", {"lone": "zero"}),
    "verl_reinforce_pp_gamma0.95": ("reinforce/reinforce-pp", {"gamma": 0.95}),
    "verl_reinforce_pp_gamma1.0": ("reinforce/reinforce-pp", {}),
    "verl_reinforce_pp_baseline": ("reinforce/reinforce-pp-baseline", {"lone": "reward", "shift_equal": True}),
    "trl_grpo_scale_batch": ("grpo/grpo", {**TRL, "scale": "batch"}),
    "trl_grpo_scale_group": ("grpo/grpo", TRL),
    "trl_grpo_scale_none": ("grpo/grpo", {**TRL, "scale": "none"}),
    "trl_rloo": ("reinforce/rloo", {}),
    "trl_rloo_normalized": ("reinforce/rloo", {"normalize": True}),
    "trl_rloo_kl_in_reward_beta0.05": ("reinforce/rloo", {}),
    "torchforge_compute_advantages": ("grpo/grpo", TRL),
    "slime_grpo": ("grpo/grpo", {"eps": 1e-6}),
}
LEFT_OUT = {
    "trl_gdpo_normalize_then_sum": "GDPO standardises each reward by itself; estimators here see their sum",
}
#: Computed in float32 by the library (their `hand_rel_diff` to the exact formula is above 1e-9).
SINGLE = {
    name
    for name, record in RECORDS.items()
    if record["hand_rel_diff"] > 1e-9 and name != "verl_grpo_stdTrue/all_equal_groups"
}
#: slime forgets the group ids of its two groups in the record; its name says them.
GROUPS = {"slime_grpo/two_groups_of_4": [0, 0, 0, 0, 1, 1, 1, 1]}


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    worst = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
    assert worst <= tolerance, f"difference {worst:.3g} of the largest"


@pytest.mark.parametrize("name", [n for n in RECORDS if n not in LEFT_OUT])
def test_advantages(name: str) -> None:
    record = RECORDS[name]
    ref, keys = TABLE[name.partition("/")[0]]
    extra: dict[str, Any] = {"padding_mask": record["mask"]}
    if "input_set" in record["params"]:
        inputs = INPUTS[record["params"]["input_set"]]
        extra |= {"old_logprobs": inputs["old_logprobs"], "ref_logprobs": inputs["ref_logprobs"]}
        extra |= {"kl": {"beta": record["params"]["beta"], "estimator": "k1", "placement": "reward"}}
    found = evaluate_advantage(ref, record["rewards"], GROUPS.get(name, record["index"]), keys, **extra)
    expected = torch.tensor(record["advantages"], dtype=torch.float64)
    if found.dim() > expected.dim():
        found = found[:, 0]
    if name == "verl_grpo_stdTrue/all_equal_groups":
        # verl divides the group of one by a float32 1 + eps; that row has float32's precision, the others float64's.
        close(found[5:6], expected[5:6], 1e-7)
        found[5] = expected[5]
    close(found, expected, 1e-6 if name in SINGLE else 1e-9)


def test_table_covers_the_file() -> None:
    assert {name.partition("/")[0] for name in RECORDS} == set(TABLE) | set(LEFT_OUT)


# --- KL -------------------------------------------------------------------------------------------------------------

KL_TABLE: dict[str, dict[str, Any]] = {
    "verl_k1": {"estimator": "k1"},
    "verl_abs": {"estimator": "abs"},
    "verl_k2": {"estimator": "k2"},
    "verl_k3": {"estimator": "k3", "clamp": 20.0, "max_value": 10.0},
    "verl_low_var_kl": {"estimator": "k3", "clamp": 20.0, "max_value": 10.0},
    "verl_k1+": {"estimator": "k1+"},
    "verl_k3+": {"estimator": "k3+", "clamp": 20.0, "max_value": 10.0},
    "slime_k1": {"estimator": "k1"},
    "slime_k2": {"estimator": "k2"},
    "slime_k3": {"estimator": "k3"},
    "slime_low_var_kl": {"estimator": "k3", "max_value": 10.0},
    "openrlhf_k1": {"estimator": "k1", "max_value": 10.0},
    "openrlhf_k2": {"estimator": "k2", "max_value": 10.0},
    "openrlhf_k3": {"estimator": "k3", "max_value": 10.0},
    "unclamped_k3_hand(torchforge/TRL)": {"estimator": "k3"},
}


@pytest.mark.parametrize("name", list(GOLDEN["kl"]["estimators"]))
def test_kl(name: str) -> None:
    """exp(x) - x - 1, as libraries compute k3, is off by one rounding at 1, which expm1 is not."""
    record = GOLDEN["kl"]["estimators"][name]
    single = record.get("dtype") == "torch.float32"
    difference = torch.tensor(GOLDEN["kl"]["ref_minus_lp"], dtype=torch.float32 if single else torch.float64)
    logprobs = torch.full_like(difference, -1.0)
    # The inputs rounded as the library had them, the estimate in float64.
    ref = (logprobs + difference).double()
    logprobs = logprobs.double().requires_grad_()
    value = kl_estimate(logprobs, ref, KL(**KL_TABLE[name]))
    (grad,) = torch.autograd.grad(value.sum(), logprobs)
    relative, absolute = (1e-6, 2.4e-7) if single else (1e-9, 4.5e-16)
    for found, expected in ((value.detach(), record["value"]), (grad, record["grad"])):
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)


def test_kl_table_covers_the_file() -> None:
    assert set(GOLDEN["kl"]["estimators"]) == set(KL_TABLE)


def test_entropy() -> None:
    """verl's own value is nan where a logit is -inf; the exact one is expected."""
    record = GOLDEN["kl"]["entropy"]
    logits = torch.tensor([[float(x) for x in row] for row in record["logits"]], dtype=torch.float64)
    _, entropy = token_logprobs(logits, torch.ones(len(logits), dtype=torch.int64), with_entropy=True)
    expected = torch.tensor(record["hand"], dtype=torch.float64)
    torch.testing.assert_close(entropy, expected, rtol=1e-9, atol=1e-15)


# --- overlong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("library", "keys"), [("trl", {}), ("openrlhf", {}), ("verl", {"capped": False})])
def test_overlong(library: str, keys: dict[str, Any]) -> None:
    table = GOLDEN["overlong"]
    punishment = load_component("reward", "dapo/soft-overlong", {"cache_tokens": table["L_cache"], **keys})
    for row in table["rows"]:
        value = punishment(length=row["length"], max_tokens=table["L_max"])
        assert value == pytest.approx(row[library], rel=1e-9, abs=1e-15), row["length"]


def test_overlong_without_a_cache_is_a_step() -> None:
    punishment = load_component("reward", "dapo/soft-overlong", {"cache_tokens": 0})
    for length, expected in GOLDEN["overlong"]["trl_cache0"].items():
        assert punishment(length=int(length), max_tokens=100) == expected
