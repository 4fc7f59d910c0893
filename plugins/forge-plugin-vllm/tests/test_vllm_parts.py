"""What needs no vLLM: settings, environment, checkpoint names, outputs, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forge_plugin_vllm import environment as env
from forge_plugin_vllm.arguments import engine_arguments
from forge_plugin_vllm.checkpoint import check_names, expected_shapes, kv_bytes_per_token
from forge_plugin_vllm.checks import findings
from forge_plugin_vllm.config import VLLMConfig
from forge_plugin_vllm.startup import check_version, kv_cache_bytes, running_error, startup_error
from safetensors.torch import save_file

from forge_host.config.schema import ServiceConfig, TrainingConfig
from forge_host.errors import PluginError, RunError, UsageError
from forge_host.testing import PluginContract
from forge_host.types import SamplingParams, Use


class TestPlugin(PluginContract):
    plugin = "vllm"


# --- version ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["0.32.0", "0.32.1.post1", "0.32.0+cpu"])
def test_tested_versions(found: str) -> None:
    check_version(found, allow_untested=False)


@pytest.mark.parametrize("found", ["0.31.2", "0.33.0", "1.32.0", "0.3.2"])
def test_other_versions_are_refused_by_name(found: str) -> None:
    with pytest.raises(
        PluginError, match=rf"vLLM {found} is installed; .* tested with 0\.32\.x.*allow_untested_version"
    ):
        check_version(found, allow_untested=False)
    check_version(found, allow_untested=True)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_kv_cache_is_a_quarter_of_the_free_memory_up_to_4_gib() -> None:
    assert kv_cache_bytes(VLLMConfig(), 8 << 30) == 2 << 30
    assert kv_cache_bytes(VLLMConfig(), 100 << 30) == 4 << 30
    assert kv_cache_bytes(VLLMConfig(kv_cache_gb=6), 100 << 30) == 6 << 30


def test_kv_cache_is_not_larger_than_the_run_can_use(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}'
    )
    assert kv_bytes_per_token(str(tmp_path), 2) == 2 * 30 * 3 * 64 * 2
    made = engine_arguments(
        VLLMConfig(), model_path=str(tmp_path), max_model_len=480, device="cpu", seed=0, sequences=64
    )
    assert made["kv_cache_memory_bytes"] <= 64 * 512 * 46080
    assert kv_cache_bytes(VLLMConfig(), 100 << 30, 1 << 30) == 1 << 30
    assert kv_cache_bytes(VLLMConfig(), 100 << 30, 1) == 256 << 20


def test_kv_size_of_another_kind_of_model_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"n_layer": 2}')
    assert kv_bytes_per_token(str(tmp_path), 2) is None


def test_too_large_kv_cache() -> None:
    with pytest.raises(UsageError, match=r"generator\.kv_cache_gb: .*6\.00 GiB asked for, 5\.00 GiB available"):
        kv_cache_bytes(VLLMConfig(kv_cache_gb=6), 5 << 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "To serve at least one request with the models's max seq len (8192), (0.35 GiB KV cache is needed, which "
            "is larger than the available KV cache memory (0.01 GiB). Based on the available memory, the estimated "
            "maximum model length is 128.",
            "generator: not enough memory for the KV cache: one sequence of 8192 tokens needs 0.35 GiB, 0.01 GiB "
            "available; lower training.seq_len (generator.max_model_len), or raise generator.kv_cache_gb",
        ),
        ("CUDA out of memory. Tried to allocate 2 GiB", "not enough memory to start vLLM: CUDA out of memory"),
        ("No such architecture", "vLLM does not start: ValueError: No such architecture"),
    ],
)
def test_startup_errors_are_one_sentence(text: str, expected: str) -> None:
    cause = ValueError(text)
    error = startup_error(cause, {"kv_cache_memory_bytes": 1})
    assert expected in str(error) and error.__cause__ is cause


# --- arguments and environment ----------------------------------------------------------------------------------------


def test_cpu_arguments() -> None:
    made = engine_arguments(VLLMConfig(kv_cache_gb=1), model_path="/m", max_model_len=64, device="cpu", seed=3)
    assert made["enforce_eager"] and made["kv_cache_memory_bytes"] == 1 << 30 and made["block_size"] == 32
    assert (made["model"], made["max_model_len"], made["seed"]) == ("/m", 64, 3)
    assert made["logprobs_mode"] == "processed_logprobs"


def test_gpu_arguments() -> None:
    config = VLLMConfig(max_model_len=32, engine_args={"seed": 9, "swap": None})
    made = engine_arguments(config, model_path="/m", max_model_len=64, device="cuda", seed=3, procs=2, shared=True)
    assert not made["enforce_eager"] and "kv_cache_memory_bytes" not in made and "block_size" not in made
    assert (made["gpu_memory_utilization"], made["tensor_parallel_size"], made["max_model_len"]) == (0.4, 2, 32)
    assert made["seed"] == 9 and "swap" not in made, "engine_args win, null leaves vLLM's default"


def context(device: str = "cpu", **services: ServiceConfig) -> Any:
    return SimpleNamespace(device=device, role="generator", config=SimpleNamespace(services=services))


def test_threads_that_pack_keep_their_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_plugin_vllm.packing import use_threads

    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # as vLLM's worker does
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1, initializer=use_threads, initargs=(3,)) as pool:
            pool.submit(int).result()
            torch._C.set_num_threads(2)
            assert pool.submit(torch.get_num_threads).result() == 3
    finally:
        torch._C.set_num_threads(before)


def test_environment_shares_cores_between_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert env.environment(VLLMConfig(), context())["OMP_NUM_THREADS"] == "8"
    two = context(generator=ServiceConfig(num_replicas=2))
    assert env.environment(VLLMConfig(), two)["OMP_NUM_THREADS"] == "4"
    assert env.environment(VLLMConfig(threads=3), two)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in env.environment(VLLMConfig(), context("cuda"))


def test_environment_keeps_the_users_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert "VLLM_LOGGING_LEVEL" not in env.environment(VLLMConfig(), context())


def test_preloads_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libtcmalloc_minimal.so.4"
    library.touch()
    monkeypatch.setattr(env, "TCMALLOC", ("/nowhere/libtcmalloc.so", str(library)))
    monkeypatch.setattr(env, "OPENMP", ("/nowhere/libiomp5.so",))
    monkeypatch.setenv("LD_PRELOAD", "/lib/mine.so")
    assert env.environment(VLLMConfig(), context())["LD_PRELOAD"] == f"/lib/mine.so:{library}"
    monkeypatch.setenv("LD_PRELOAD", str(library))
    assert env.environment(VLLMConfig(), context())["LD_PRELOAD"] == str(library)


# --- checkpoint names -------------------------------------------------------------------------------------------------

SHAPES = {"a": (2, 3), "b": (4,), "c": (1,)}


def test_expected_shapes_of_all_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    save_file({"b": torch.zeros(4), "c": torch.zeros(1)}, tmp_path / "model-00002-of-00002.safetensors")
    assert expected_shapes(str(tmp_path)) == SHAPES
    assert expected_shapes(str(tmp_path / "none")) == {}


def test_right_names_in_any_order() -> None:
    check_names(SHAPES, reversed(SHAPES.items()), tied=False)


@pytest.mark.parametrize("expected", [SHAPES, {**SHAPES, "lm_head.weight": (9, 9)}])
@pytest.mark.parametrize("sent", [{}, {"lm_head.weight": (9, 9)}])
def test_tied_output_embedding_is_optional(expected: Any, sent: Any) -> None:
    check_names(expected, {**SHAPES, **sent}.items(), tied=True)


@pytest.mark.parametrize(
    ("received", "message"),
    [
        ([("a", (2, 3)), ("c", (1,))], "tensor b is missing"),
        ([], "3 tensors (a, b, c) are missing"),
        ([*SHAPES.items(), ("d", (1,))], "tensor d is unknown to the generator's model"),
        ([*SHAPES.items(), ("lm_head.weight", (1,))], "tensor lm_head.weight is unknown"),
        ([("a", (3, 2)), ("b", (4,)), ("c", (1,))], "tensor a has shape [3, 2] instead of [2, 3]"),
        ([*SHAPES.items(), ("b", (4,))], "tensor b came twice"),
    ],
)
def test_wrong_names(received: Any, message: str) -> None:
    with pytest.raises(RunError) as caught:
        check_names(SHAPES, received, tied=False)
    assert message in str(caught.value)


# --- settings and errors ----------------------------------------------------------------------------------------------


def test_out_of_memory_names_the_phase_and_the_knobs() -> None:
    found = running_error(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "generating")
    assert str(found).startswith("generator: out of memory while generating: RuntimeError: CUDA out of memory")
    for knob in ("generator.gpu_memory_utilization", "generator.max_num_seqs", "training.micro_batch_tokens"):
        assert knob in str(found)
    other = str(running_error(ValueError("bad"), "generating"))
    assert other == "generator: vLLM failed while generating: ValueError: bad"


def test_sleeping() -> None:
    def given(**settings: Any) -> dict[str, Any]:
        return engine_arguments(
            VLLMConfig(**settings), model_path="m", max_model_len=64, device="cuda", seed=0, shared=True
        )

    assert given(sleep_between_steps=True)["enable_sleep_mode"] is True and "enable_sleep_mode" not in given()
    with pytest.raises(UsageError, match="on the CPU and cannot give its memory back"):
        engine_arguments(VLLMConfig(sleep_between_steps=True), model_path="m", max_model_len=64, device="cpu", seed=0)


# --- plan -------------------------------------------------------------------------------------------------------------


def plan(sampling: SamplingParams, needs: tuple[str, ...] = (), plugin: str = "vllm", **settings: Any) -> Any:
    return SimpleNamespace(
        generator=SimpleNamespace(plugin=plugin, use=Use("vllm", settings)), sampling=sampling, needs=frozenset(needs)
    )


def test_filtered_sampling_is_pointed_out() -> None:
    (finding,) = findings(plan(SamplingParams(top_p=0.9)))
    assert finding.level == "warning" and "top_p 0.9" in finding.message
    assert not list(findings(plan(SamplingParams(top_p=0.9), needs=("unfiltered-sampling",)))), "the host refuses it"
    assert not list(findings(plan(SamplingParams(top_p=0.9), plugin="other")))
    assert not list(findings(plan(SamplingParams())))


def test_too_short_model_length() -> None:
    (finding,) = findings(plan(SamplingParams(max_tokens=64), max_model_len=64))
    assert finding.level == "error" and "leaves no room" in finding.message


@pytest.mark.parametrize(("age", "interval", "fine"), [(0, 1, True), (1, 1, False), (0, 2, False)])
def test_sleeping_only_between_synchronous_steps(age: int, interval: int, fine: bool) -> None:
    run = plan(SamplingParams(), sleep_between_steps=True)
    run.config = SimpleNamespace(training=TrainingConfig(max_policy_age=age, sync_interval=interval))
    assert [f.level for f in findings(run)] == ([] if fine else ["error"])


@pytest.mark.slow
def test_sampled_logprobs_are_those_of_vllm() -> None:
    from forge_plugin_vllm.sampled import sampled_only
    from vllm.v1.sample.sampler import Sampler

    logprobs, tokens = torch.randn(5, 40).log_softmax(-1), torch.randint(0, 40, (5,))
    ours = sampled_only(Sampler.gather_logprobs)
    for number in (0, 3):
        with torch.compiler.set_stance("force_eager"):
            theirs, mine = Sampler.gather_logprobs(logprobs, number, tokens), ours(logprobs, number, tokens)
        assert torch.equal(theirs.logprobs, mine.logprobs)
        assert torch.equal(theirs.logprob_token_ids, mine.logprob_token_ids)
        assert theirs.selected_token_ranks.shape == mine.selected_token_ranks.shape
        assert theirs.selected_token_ranks.dtype == mine.selected_token_ranks.dtype


def test_what_this_host_does_not_ask_for_goes_vllms_way_on_a_gpu() -> None:
    from forge_plugin_vllm.sampled import scores_of_sampled

    asked: list[tuple[object, ...]] = []
    ours = scores_of_sampled(lambda *given, **named: asked.append((*given, *sorted(named.items()))))
    logits, ids = torch.zeros(2, 5), torch.tensor([1, 3])
    ours(logits, 2, ids)
    ours(logits, 0, ids, None, max_per_req_token_ids=4)
    ours(logits, 0, ids, None, logits_mode=True)
    ours(logits, 0, ids, torch.tensor([0, 1, 2]), expanded_idx_mapping=7)  # its boundaries are on the device only
    assert [given[1] for given in asked] == [2, 0, 0, 0]
    assert ("max_per_req_token_ids", 4) in asked[1] and ("logits_mode", True) in asked[2]
    assert ("expanded_idx_mapping", 7) in asked[3] and asked[3][3] is not None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logprobs_of_sampled_tokens_on_a_gpu(dtype: torch.dtype) -> None:
    from forge_plugin_vllm.sampled import scores_of_sampled
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

    logits = torch.randn(9, 50_001, device="cuda").to(dtype)
    ids = torch.randint(0, 50_001, (9,), device="cuda")
    mine, theirs = scores_of_sampled(compute_topk_scores)(logits, 0, ids), compute_topk_scores(logits, 0, ids)
    exact = logits.float().log_softmax(-1).gather(1, ids.unsqueeze(-1))
    torch.testing.assert_close(mine.logprobs, exact, rtol=0, atol=2e-5)
    for one, other in zip(mine, theirs, strict=True):
        assert one is other is None or (one.shape, one.dtype) == (other.shape, other.dtype)


@pytest.mark.parametrize("vocabulary", [7, 128, 300])
def test_draws_follow_the_probabilities(vocabulary: int) -> None:
    from forge_plugin_vllm.sampled import draw

    probs = torch.rand(vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    probs[::3] = 0.0
    numbers = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000  # evenly over [0, 1), so counts are exact
    counts = torch.bincount(draw(probs.expand(200_000, -1), numbers), minlength=vocabulary)
    expected = probs.double() / probs.double().sum() * 200_000
    assert float((counts - expected).abs().max()) <= 1.0 and not counts[::3].any()
    edges = draw(probs.expand(2, -1), torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64))
    assert bool((probs[edges] > 0).all()), "a token of probability 0 is never drawn"


def test_draws_by_seed_and_without_filters() -> None:
    from forge_plugin_vllm.sampled import from_logprobs

    forward = from_logprobs(lambda logits, generators, k, p: ("vLLM", k, p))
    logits = torch.randn(3, 500)
    seeded = [forward(logits, {1: torch.Generator().manual_seed(5)}, None, None) for _ in range(8)]
    assert len({int(tokens[1]) for tokens, _ in seeded}) == 1, "a seed is a draw"
    assert len({int(tokens[0]) for tokens, _ in seeded}) > 1
    assert torch.equal(seeded[0][1], logits.log_softmax(-1))
    assert forward(logits, {}, torch.tensor([5]), None)[0] == "vLLM"


@pytest.mark.slow
def test_norms_are_those_of_vllm() -> None:
    from forge_plugin_vllm.norms import fused_add_rms_norm, register_norms, rms_norm
    from vllm import ir

    priority = register_norms()["ir_op_priority"]
    assert register_norms()["ir_op_priority"] == priority, "twice is once"
    x, rest = torch.randn(2, 32, 96, dtype=torch.bfloat16).unbind()
    weight = torch.rand(96, dtype=torch.bfloat16)
    theirs = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-5)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), theirs)
    both = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, rest, weight, 1e-5)
    torch.testing.assert_close(fused_add_rms_norm(x.clone(), rest.clone(), weight, 1e-5), both)
