"""What needs no vLLM: settings, environment, checkpoint names, outputs, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from forge_plugin_vllm import environment as env
from forge_plugin_vllm.arguments import engine_arguments
from forge_plugin_vllm.checkpoint import check_names, expected_shapes, kv_bytes_per_token
from forge_plugin_vllm.checks import findings
from forge_plugin_vllm.collect import Answer, Collector, Sample
from forge_plugin_vllm.config import VLLMConfig
from forge_plugin_vllm.outputs import completions_of
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


# --- outputs ----------------------------------------------------------------------------------------------------------


def answer(*samples: Sample) -> Answer:
    return Answer("7", 2, {f"7.{index}": sample for index, sample in enumerate(samples)}, 0)


def sample(reason: str = "stop", starts: Any = ((0, 3),), logprobs: Any = (-0.5, -1.0), text: Any = None) -> Sample:
    return Sample(list(starts), [7, 8], list(logprobs), reason, text)


def joined(token_ids: Any) -> str:
    return "+".join(map(str, token_ids))


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


def test_completions_in_sample_order() -> None:
    found = completions_of(answer(sample(starts=((0, 3), (1, 4))), sample("length"), sample(text="8")), [1, 2], joined)
    assert [c.text for c in found] == ["7", "7+8", "8"], "the token that ended it is no text"
    assert [c.policy_versions for c in found] == [(3, 4), (3, 3), (3, 3)]
    assert [c.finish_reason for c in found] == ["stop", "length", "stop"]
    assert found[0].prompt_ids == (1, 2) and found[0].logprobs == (-0.5, -1.0) and found[0].token_ids == (7, 8)


def test_versions_of_updates_between_tokens() -> None:
    starts = [(0, 3), (0, 4), (2, 5), (2, 6)]
    assert Sample(starts, [1, 2, 3, 4]).versions() == (4, 4, 6, 6)
    assert Sample(starts[:2], []).versions() == ()


@pytest.mark.parametrize(
    ("broken", "message"),
    [({"reason": "error"}, "'error'"), ({"logprobs": ()}, "2 tokens and 0 log-probabilities")],
)
def test_incomplete_outputs_are_errors(broken: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        completions_of(answer(sample(**broken)), [1], joined)


class Core:
    """vLLM's engine as far as `Collector` knows it; `plan` holds the outputs of each step."""

    def __init__(self, *plan: Any) -> None:
        self.plan, self.added, self.aborted = list(plan), list[Any](), list[str]()
        self.engine_core = self.input_processor = self.output_processor = self
        self.scheduler = SimpleNamespace(update_from_output=lambda scheduled, output: output)
        self.add_request = self.added.append

    def get_output(self) -> Any:
        outputs = [SimpleNamespace(request_id=n, new_token_ids=t, finish_reason=r) for n, t, r in self.plan.pop(0)]
        rows = {output.request_id: row for row, output in enumerate(reversed(outputs))}
        values = numpy.array([[-float(token)] for output in reversed(outputs) for token in output.new_token_ids])
        logprobs = SimpleNamespace(logprobs=values, cu_num_generated_tokens=None)
        self.scheduler.update_from_output(None, SimpleNamespace(logprobs=logprobs, req_id_to_index=rows))
        return SimpleNamespace(outputs=outputs)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def process_inputs(self, request_id: str, prompt: Any, params: Any, supported_tasks: Any) -> Any:
        return SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], sampling_params=params)

    def abort_requests(self, names: Any, internal: bool = False) -> None:
        self.aborted += names


def test_responses_grow_and_end_one_by_one() -> None:
    core = Core(
        [("7.0", [3], None), ("7.1", [4], None), ("8.0", [5], None)],
        [("7.0", [6], "stop"), ("7.1", [7], None), ("8.0", [8], None)],
        [("8.0", [9], "length"), ("7.1", [10], "length")],
    )
    collector = Collector(core, version=2)
    params = SimpleNamespace(n=2, seed=5, stop=None)
    collector.add("7", {"prompt_token_ids": [1, 2]}, params)
    collector.add("8", {"prompt_token_ids": [1]}, SimpleNamespace(n=1, seed=None, stop=None))
    assert [r.request_id for r in core.added] == ["7.0", "7.1", "8.0"] and params.n == 2
    assert [(r.sampling_params.n, r.sampling_params.seed) for r in core.added] == [(1, 5), (1, 6), (1, None)]
    assert collector.step() == [] and len(collector) == 3
    collector.move_to(3)
    assert collector.step() == [] and len(collector) == 2
    eight, seven = collector.step()
    assert (eight.request_id, seven.request_id, seven.prompt_tokens, len(collector)) == ("8", "7", 2, 0)
    first, second = seven.samples.values()
    assert (first.token_ids, first.logprobs, first.reason) == ([3, 6], [-3.0, -6.0], "stop")
    assert (second.token_ids, second.logprobs, second.versions()) == ([4, 7, 10], [-4.0, -7.0, -10.0], (2, 3, 3))


def test_what_the_core_refuses_leaves_nothing_in_flight() -> None:
    core = Core()

    def refuse_the_second(request: Any) -> None:
        if core.added:
            raise ValueError("no")
        core.added.append(request)

    core.add_request = refuse_the_second
    collector = Collector(core, version=0)
    with pytest.raises(ValueError, match="no"):
        collector.add("7", {"prompt_token_ids": [1]}, SimpleNamespace(n=3, seed=None, stop=None))
    assert not collector and core.aborted == ["7.0"]


def test_tokens_behind_a_stop_string_are_dropped() -> None:
    """Where one step makes several tokens."""
    core = Core([("7.0", [3, 4, 5], None)])
    output = SimpleNamespace(token_ids=[3], text="x", finish_reason="stop")
    core.process_outputs = lambda outputs: SimpleNamespace(  # type: ignore[attr-defined]
        reqs_to_abort=["7.0"], request_outputs=[SimpleNamespace(request_id="7.0", outputs=[output])]
    )
    core.add_request = lambda *request: None  # type: ignore[assignment]
    collector = Collector(core, version=0)
    collector.add("7", {"prompt_token_ids": [1]}, SimpleNamespace(n=1, seed=None, stop=["."]))
    (answer,) = collector.step()
    (sample,) = answer.samples.values()
    assert (sample.token_ids, sample.logprobs, sample.text, sample.reason) == ([3], [-3.0], "x", "stop")
    assert core.aborted == ["7.0"] and not collector


def test_a_cancelled_answer_is_forgotten() -> None:
    core = Core([("7.0", [3], None), ("8.0", [5], None)], [("7.0", [4], "length"), ("8.0", [6], "stop")])
    collector = Collector(core, version=0)
    for name in ("7", "8"):
        collector.add(name, {"prompt_token_ids": [1]}, SimpleNamespace(n=1, seed=None, stop=None))
    collector.step()
    collector.abort(["7"])
    assert core.aborted == ["7.0"] and len(collector) == 1
    assert [answer.request_id for answer in collector.step()] == ["8"] and not collector


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
