"""vLLM as this plugin uses it: one engine in this process, on a thread of its own, with asyncio in front.

    arguments = engine_arguments(config, model_path="/models/SmolLM2", max_model_len=2048, device="cpu", seed=0)
    engine = VLLMEngine(arguments, opening=opening)
    await engine.start()
    completions = await engine.generate([1, 2, 3], SamplingParams(n=8, max_tokens=24))
    await engine.update_weights(receipt)
    await engine.stop()

Why a thread and not vLLM's AsyncLLM: that puts the engine into a child process and, on a CPU, the model into a third.
Here nothing outlives this process, even after kill -9, start-up loads vLLM once, and a weight update is a call
between two steps of the engine: every token was computed with exactly the weights whose version it is given.

Log-probabilities are vLLM's `processed_logprobs`: of the sampled token under the distribution it was drawn from, after
temperature, top-p and top-k. With temperature 0 they are those of temperature 1.

A response in flight during an update goes on with the keys and values that the old weights left (unless
`recompute_in_flight`); its later tokens have the new version. A prompt that arrives after an update never shares
cached keys and values from before it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import structlog

from forge_host.api import Completion, Receipt, RunError, SamplingParams, UsageError
from forge_plugin_vllm.collect import Answer, Collector
from forge_plugin_vllm.norms import register_norms
from forge_plugin_vllm.outputs import completions_of, sampling_params
from forge_plugin_vllm.startup import running_error, startup_error
from forge_plugin_vllm.worker import Opening

log = structlog.get_logger()


class VLLMEngine:
    """One vLLM engine. All methods are called from one asyncio loop; vLLM itself only runs on the engine's thread.

    Args:
        arguments: of vLLM's `EngineArgs` (`forge_plugin_vllm.arguments.engine_arguments`).
        opening: how its workers fetch weights; None if they never do.
        recompute_in_flight: drop the keys and values of unfinished responses at an update.
        version: of the weights in the model's folder.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        opening: Opening | None = None,
        recompute_in_flight: bool = False,
        version: int = 0,
    ) -> None:
        self.arguments, self.opening, self.recompute = dict(arguments), opening, recompute_in_flight
        self.version = version
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._pending: dict[str, Future[Answer]] = {}
        self._ids = itertools.count()
        self._thread: threading.Thread | None = None
        self._engine: Any = None
        self._collector: Any = None
        self._tokenizer: Any = None
        self._dead: RunError | None = None
        self._loading = ""
        self._asleep = False
        self._counts: dict[str, float] = dict.fromkeys(
            ("tokens/generated", "tokens/prompt", "requests/finished", "sync/updates", "sync/pause_s"), 0.0
        )

    async def start(self) -> None:
        """Load the model.

        Raises:
            UsageError: vLLM refuses the settings, for example too little memory for the KV cache.
            RunError: it fails otherwise.
        """
        began = time.perf_counter()
        ready: Future[Any] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="vllm-engine", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(ready)
        self._counts["time/startup_s"] = time.perf_counter() - began

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Completion]:
        """`params.n` responses to one prompt of token ids. Cancelling it frees the engine's share.

        Raises:
            UsageError: the prompt is empty, or leaves no room for `params.max_tokens`.
            RunError: the engine is dead.
        """
        return (await self.generate_many([prompt_ids], [params]))[0]

    async def generate_many(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> list[list[Completion]]:
        """Responses to several prompts that enter the engine in one of its steps, in this order. With nothing else in
        flight, and with seeds, the same call gives the same responses: every step computes the same batch.

        Raises:
            UsageError, RunError: as `generate`.
        """
        for prompt_ids, each in zip(prompts, params, strict=True):
            self._check(prompt_ids, each)
        asked: list[tuple[str, Sequence[int], SamplingParams, Future[Answer]]]
        asked = [(str(next(self._ids)), ids, each, Future()) for ids, each in zip(prompts, params, strict=True)]

        def add() -> None:
            for request_id, prompt_ids, each, future in asked:
                # What is drawn with a seed must not meet keys and values that were computed in another batch.
                salt = f"version {self.version}" + ("" if each.seed is None else ", seeded")
                prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": salt}
                self._collector.add(request_id, prompt, sampling_params(each))
                self._pending[request_id] = future

        try:
            await self._call(add)
            answers = [await asyncio.wrap_future(future) for *_, future in asked]
        except BaseException:  # cancelled, or refused in the middle: raised again, and the others are not awaited
            if self._dead is None:
                self._submit(lambda: self._cancel([request_id for request_id, *_ in asked]))
            raise
        return [
            completions_of(answer, prompt_ids, self._decode)
            for answer, (_, prompt_ids, *_) in zip(answers, asked, strict=True)
        ]

    def _check(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        limit = self._engine.model_config.max_model_len
        if not prompt_ids:
            raise UsageError("a prompt without tokens cannot be answered", fix="remove it from the dataset")
        if len(prompt_ids) + params.max_tokens > limit:
            raise UsageError(
                f"a prompt of {len(prompt_ids)} tokens and a response of {params.max_tokens} exceed the {limit} tokens "
                "that the generator holds",
                fix="raise training.seq_len, lower max_tokens, or set dataset.max_prompt_tokens",
            )

    async def update_weights(self, receipt: Receipt, checksum: bool = False) -> str:
        """Load a newer version between two steps; requests go on afterwards. Returns the digest of the tensors or "".

        Raises:
            ValueError: the version is not newer than the one held.
            RunError: it cannot be fetched or does not fit the model; the old weights stay, and so does their version.
        """
        return str(await self._call(lambda: self._update(receipt, checksum)))

    async def sleep(self) -> None:
        """Free the KV cache and move the weights to host memory, until `wake`. Nothing may be in flight.

        Raises:
            RunError: a request is in flight.
        """

        def work() -> None:
            if self._pending:
                raise RunError(f"the generator cannot sleep with {len(self._pending)} requests in flight")
            if not self._asleep:
                self._engine.sleep(level=1)
                self._asleep = True

        await self._call(work)

    async def wake(self) -> None:
        """Be ready to generate and to load weights again."""

        def work() -> None:
            if self._asleep:
                self._engine.wake_up()
                self._asleep = False

        await self._call(work)

    def metrics(self) -> dict[str, float]:
        """Totals since the start, with units in their names, and what is in flight now."""
        return {
            **self._counts,
            "requests/running": float(len(self._pending)),
            "policy_version": float(self.version),
            "sync/in_place": float(self._loading == "in place"),
        }

    async def stop(self) -> None:
        """End the thread and free the model; unfinished requests fail."""
        if self._thread is None or not self._thread.is_alive():
            return
        await self._call(self._shutdown)
        await asyncio.to_thread(self._thread.join, 30)

    # --- on the engine's thread ----------------------------------------------------------------------------------

    def _run(self, ready: Future[Any]) -> None:
        try:
            self._load()
        except Exception as error:  # whatever vLLM raises at start, the caller of `start` gets it
            ready.set_exception(startup_error(error, self.arguments))
            return
        ready.set_result(None)
        while self._engine is not None:
            self._work_off_jobs()
            if self._engine is not None and self._collector:
                try:
                    self._step()
                except Exception as error:  # the engine's state is unknown now: every request must hear of it
                    log.exception("vLLM failed")
                    self._die(running_error(error, "generating"))

    def _load(self) -> None:
        gc.disable()  # vLLM imports a few thousand modules; collecting among them costs seconds
        try:
            from vllm import EngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.llm_engine import LLMEngine

            gc.freeze()
            faster = {}
            if current_platform.is_cpu() and self.arguments.get("tensor_parallel_size", 1) == 1:
                faster = register_norms()  # workers of their own would not know them
            self._engine = LLMEngine.from_engine_args(EngineArgs(**{**faster, **self.arguments}))
        finally:
            gc.enable()
        self._tokenizer = self._engine.tokenizer
        self._collector = Collector(self._engine, self.version)
        self._engine.collective_rpc("forge_prepare", args=(os.getpid(),))
        if self.opening is not None:
            self._engine.collective_rpc("forge_open", args=(self.opening,))

    def _work_off_jobs(self) -> None:
        """Run what was submitted; wait for something when there is nothing to generate."""
        block = not self._collector
        while True:
            try:
                job, future = self._jobs.get(block=block)
            except queue.Empty:
                return
            block = False
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except Exception as error:  # the submitter's, not this thread's
                future.set_exception(error)
            else:
                future.set_result(result)
            if self._engine is None:
                return

    def _step(self) -> None:
        for answer in self._collector.step():
            future = self._pending.pop(answer.request_id)
            self._counts["requests/finished"] += 1
            self._counts["tokens/prompt"] += answer.prompt_tokens
            self._counts["tokens/generated"] += sum(len(sample.token_ids) for sample in answer.samples.values())
            if future.set_running_or_notify_cancel():
                future.set_result(answer)

    def _cancel(self, request_ids: Sequence[str]) -> None:
        going = [request_id for request_id in request_ids if self._pending.pop(request_id, None)]
        self._collector.abort(going)

    def _update(self, receipt: Receipt, checksum: bool) -> str:
        if receipt.version <= self.version:
            raise ValueError(f"version {receipt.version} of the weights came after {self.version}")
        began = time.perf_counter()
        try:
            self._drain()
            results = self._engine.collective_rpc("forge_load", args=(receipt, checksum))
            refused = [result["refused"] for result in results if "refused" in result]
            if refused and len(refused) < len(results):
                raise RunError(f"{len(refused)} of {len(results)} workers refused it: {refused[0]}")
        except Exception as error:  # a worker may hold a part of the new weights
            failure = running_error(error, f"loading version {receipt.version} of the weights")
            self._die(failure)
            raise failure from error
        if refused:
            raise refused[0]
        self.version = receipt.version
        self._collector.move_to(self.version)
        if self.recompute:
            self._engine.engine_core.reset_prefix_cache(reset_running_requests=True)
        if not self._loading:
            self._loading = str(results[0]["loading"])
            log.info("how weights are loaded from the second update on", loading=self._loading)
        pause_s = time.perf_counter() - began
        self._counts["sync/updates"] += 1
        self._counts["sync/pause_s"] += pause_s
        log.debug("weights loaded", version=self.version, pause_s=round(pause_s, 4), **results[0])
        return str(results[0]["digest"])

    def _drain(self) -> None:
        """With asynchronous scheduling (GPU) a step may be under way: take its tokens in, as the old version's."""
        core = self._engine.engine_core.engine_core
        if not getattr(core, "batch_queue", None):
            return
        from vllm.v1.core.sched.interface import PauseState

        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        while core.batch_queue:
            self._step()
        core.scheduler.set_pause_state(PauseState.UNPAUSED)

    def _shutdown(self) -> None:
        if self.opening is not None:
            self._engine.collective_rpc("forge_close")
        self._engine.engine_core.shutdown()
        self._die(RunError("the generator was stopped"))

    def _die(self, error: RunError) -> None:
        """Fail everything that waits, now and later."""
        self._dead, self._engine, self._collector = error, None, None
        while self._pending:
            _, future = self._pending.popitem()
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        self._fail_jobs(error)

    def _fail_jobs(self, error: RunError) -> None:
        with suppress(queue.Empty):
            while True:
                _, future = self._jobs.get(block=False)
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _decode(self, token_ids: Sequence[int]) -> str:
        """The text; "" when vLLM was started without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    # --- on the caller's loop ------------------------------------------------------------------------------------

    def _submit(self, job: Callable[[], Any]) -> Future[Any]:
        if self._dead is not None:
            raise self._dead
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        if self._dead is not None:  # since: nobody takes it any more
            self._fail_jobs(self._dead)
        return future

    async def _call(self, job: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._submit(job))
