"""Every reference value of `tests/golden/losses.json`, by configuration alone.

TABLE maps a record to the algorithm and the keys that reproduce it: `(algorithm, its section's keys, sections laid over
it)`, exactly what a YAML file would hold. Each record is compared in float64, loss and every gradient entry, at 1e-9.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_host.testing.evaluate import algorithm_objective, evaluate_loss

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
RECORDS = GOLDEN["losses"]

# How libraries differ from the papers, as settings.
TRL = {"beta": 0.0}
ROWS = {"aggregation": "sequence-mean"}
TOKENS = {"aggregation": "token-mean"}
VERL = {"beta": 0.0, "aggregation": "token-mean", "dual_clip": 3.0}
VERL_ROWS = {"mode": "sequence-mean", "length_eps": 1e-8, "empty_rows": "skip"}
CLAMP = {"loss": {"log_ratio_clamp": 20.0}}


def trl_correction(mode: str, level: str, low: float | None, high: float) -> dict[str, Any]:
    return {"correction": {"mode": mode, "level": level, "low": low, "high": high}}


def verl_kl(estimator: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    # The record is the penalty alone: no advantages, coefficient 1. Only verl's k3 is bounded.
    return "grpo", {"beta": 1.0, "kl_estimator": estimator, **TOKENS}, {}


TABLE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "forge_simple_grpo_beta0.1": ("grpo", TRL, {"loss": {"use": "grpo/simple-grpo"}}),
    "forge_simple_grpo_beta0.0": ("grpo", TRL, {"loss": {"use": "grpo/simple-grpo", "beta": 0.0}}),
    "forge_simple_grpo_beta0.01": ("grpo", TRL, {"loss": {"use": "grpo/simple-grpo", "beta": 0.01}}),
    "forge_reinforce": ("reinforce", {}, {"generator": "old"}),
    "torchtitan_grpo": ("grpo", {**TRL, **TOKENS}, {"loss": {"log_ratio_clamp": 10.0}}),
    "torchtitan_dapo": ("dapo", {}, {"loss": {"log_ratio_clamp": 10.0}}),
    "trl_grpo_eps0.2": ("grpo", TRL, {}),
    "trl_bnpo_eps0.2": ("grpo", {**TRL, **TOKENS}, {}),
    "trl_dapo_eps0.2": ("dapo", {"clip_high": 0.2}, {}),
    "trl_dr_grpo_eps0.2": ("dr-grpo", {"max_tokens": 16}, {}),
    "trl_dr_grpo_maxlen100": ("dr-grpo", {}, {"aggregation": {"length": 100}}),
    "trl_dapo_clip_higher": ("dapo", {}, {}),
    "trl_grpo_two_sided_delta": ("grpo", TRL, {"loss": {"max_ratio": 4.0}}),
    "trl_grpo_kl0.04_biasTrue": ("grpo", {}, {"kl": {"bias_correction": True}}),
    "trl_grpo_kl0.04_biasFalse": ("grpo", {}, {}),
    "trl_cispo_eps_high5": ("cispo", {}, {}),
    "trl_cispo_eps_high1.28": ("cispo", {"clip_high": 0.28}, {}),
    "trl_sapo": ("sapo", {"tau_neg": 1.0499999523162842}, {}),
    "trl_sapo_tau2_3": ("sapo", {"tau_pos": 2.0, "tau_neg": 3.0}, {}),
    "trl_gspo_0.0003_0.0004": ("gspo", {}, {}),
    "trl_gspo_token_0.0003_0.0004": ("gspo-token", {}, {}),
    "trl_gspo_0.2_0.28": ("gspo", {"clip_low": 0.2, "clip_high": 0.28}, {}),
    "trl_gspo_token_0.2_0.28": ("gspo-token", {"clip_low": 0.2, "clip_high": 0.28}, {}),
    "trl_gspo_kl0.04": (
        "gspo", {"clip_low": 0.2, "clip_high": 0.28, "beta": 0.04}, {"kl": {"bias_correction": True}}
    ),
    "trl_gspo_dapo_agg": ("gspo", {"clip_low": 0.2, "clip_high": 0.28, **TOKENS}, {}),
    "trl_opsm_0.1": ("grpo", TRL, {"loss": {"off_policy_kl": 0.1}}),
    "trl_rloo_eps0.2": ("rloo", {}, {}),
    "trl_grpo_is_token_truncate_None_2.0": ("grpo", TRL, trl_correction("truncate", "token", None, 2.0)),
    "trl_grpo_is_token_truncate_0.5_2.0": ("grpo", TRL, trl_correction("truncate", "token", 0.5, 2.0)),
    "trl_grpo_is_token_mask_0.5_2.0": ("grpo", TRL, trl_correction("mask", "token", 0.5, 2.0)),
    "trl_grpo_is_sequence_truncate_None_3.0": ("grpo", TRL, trl_correction("truncate", "sequence", None, 3.0)),
    "trl_grpo_is_sequence_mask_None_3.0": ("grpo", TRL, trl_correction("mask", "sequence", None, 3.0)),
    "trl_grpo_is_sequence_mask_0.5_2.0": ("grpo", TRL, trl_correction("mask", "sequence", 0.5, 2.0)),
    "verl_vanilla_token-mean": ("grpo", VERL, CLAMP),
    "verl_vanilla_seq-mean-token-mean": ("grpo", VERL, {**CLAMP, "aggregation": VERL_ROWS}),
    "verl_vanilla_seq-mean-token-sum-norm": (
        "grpo", VERL, {**CLAMP, "aggregation": {"mode": "fixed-length", "length": 16, "empty_rows": "skip"}}
    ),
    "verl_dapo": ("dapo", {"dual_clip": 3.0}, CLAMP),
    "verl_dapo_nodual": ("dapo", {}, CLAMP),
    "verl_cispo_10_4": ("cispo", {"clip_high": 4.0}, CLAMP),
    "verl_sapo": ("sapo", {}, {**CLAMP, "aggregation": VERL_ROWS}),
    "verl_gspo_smtm_0.0003_0.0004": ("gspo", {}, {"aggregation": VERL_ROWS}),
    "verl_gspo_smtm_0.2_0.28": ("gspo", {"clip_low": 0.2, "clip_high": 0.28}, {"aggregation": VERL_ROWS}),
    "verl_gpg": ("reinforce", {}, {"loss": {"weighted": False}}),
    "verl_vanilla_token_tis_2.0": (
        "grpo", {**VERL, "correction": "truncate"}, {**CLAMP, "correction": {"log_ratio_clamp": 20.0}}
    ),
    "verl_vanilla_seq_tis_2.0": (
        "grpo", {**VERL, "correction": "truncate", "correction_level": "sequence"},
        {**CLAMP, "correction": {"log_ratio_clamp": 20.0}},
    ),
    "verl_vanilla_token_icepop_0.5_5.0": (
        "grpo", {**VERL, "correction": "mask", "correction_low": 0.5, "correction_high": 5.0},
        {**CLAMP, "correction": {"log_ratio_clamp": 20.0}},
    ),
    "verl_kl_k1": verl_kl("k1"),
    "verl_kl_abs": verl_kl("abs"),
    "verl_kl_k2": verl_kl("k2"),
    "slime_gspo": ("gspo", {"clip_low": 0.2, "clip_high": 0.28}, {}),
    "slime_tis_0_2": ("grpo", {**TRL, "clip_high": 0.28}, trl_correction("truncate", "token", 0.0, 2.0)),
    "slime_icepop_0.5_5": ("grpo", {**TRL, "clip_high": 0.28}, trl_correction("mask", "token", 0.5, 5.0)),
}  # fmt: skip
#: Records that no configuration gives, with the reason.
LEFT_OUT: dict[str, str] = {}


def tensors_of(record: dict[str, Any], generator: str) -> dict[str, Any]:
    given = GOLDEN["input_sets"][record["input_set"]]
    advantages = torch.tensor(given["advantages"], dtype=torch.float64)
    if record["name"].startswith("verl_kl"):
        advantages = torch.zeros_like(advantages)
    return {
        "logprobs": given["logprobs"],
        "old_logprobs": given["old_logprobs"],
        "ref_logprobs": given["ref_logprobs"],
        "generator_logprobs": given["old_logprobs" if generator == "old" else "rollout_logprobs"],
        "advantages": advantages,
        "padding_mask": given["mask"],
    }


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Relative difference at most `tolerance` in every entry; entries below 1e-300 count as 0."""
    difference = (found - expected).abs()
    worst = (difference / expected.abs().clamp(min=1e-300)).where(difference > 0, 0.0).max()
    assert worst <= tolerance, f"relative difference {worst:.3g}"


@pytest.mark.parametrize("record", RECORDS, ids=[f"{r['name']}/{r['input_set']}" for r in RECORDS])
def test_record(record: dict[str, Any]) -> None:
    algorithm, keys, sections = TABLE[record["name"]]
    sections = dict(sections)
    tensors = tensors_of(record, sections.pop("generator", "rollout"))
    loss, gradients, metrics = evaluate_loss(algorithm_objective(algorithm, keys, **sections), tensors)
    same(torch.tensor(loss, dtype=torch.float64), torch.tensor(record["loss"], dtype=torch.float64))
    same(gradients["logprobs"], torch.tensor(record["grad"], dtype=torch.float64))
    assert metrics["policy/dropped_tokens"] == 0


def test_table_covers_the_file() -> None:
    assert {r["name"] for r in RECORDS} == set(TABLE) | set(LEFT_OUT)
