"""The one door to the library: makes a task's generator, with errors in this host's words.

make_task("countdown", {"min_numbers": 3}, size=100, seed=0)[0]["question"]
"""

from __future__ import annotations

import dataclasses
import difflib
import random
from collections.abc import Mapping
from typing import Any

from forge_host.api import PluginError, UsageError

#: The library's problem i of seed s is problem 0 of seed s + i, so neighbouring seeds would share nearly all problems.
STRIDE = 10_000_000


def make_task(name: str, params: Mapping[str, Any], *, size: int, seed: int) -> Any:
    """The library's dataset of one task: `size` problems, the same for the same arguments.

    Raises:
        PluginError: Reasoning Gym is not installed.
        UsageError: no such task, or its configuration refuses `params`.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise PluginError(
            f"Reasoning Gym cannot be imported ({error})", where="reasoning-gym",
            fix="pip install 'forge-plugin-reasoning-gym[tasks]'",
        ) from error  # fmt: skip
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 3)
        fix = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(DATASETS))}"
        raise UsageError(f"Reasoning Gym has no task `{name}`", where="dataset.task", fix=fix)
    known = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("size", "seed")]
    unknown = [key for key in params if key not in known]
    if unknown:
        raise UsageError(
            f"task `{name}` has no parameter `{unknown[0]}`", where="dataset.params", fix=f"it has {', '.join(known)}"
        )
    state = random.getstate()  # some tasks seed the global generator
    try:
        return create_dataset(name, size=size, seed=seed * STRIDE % 2**31, **params)
    except (AssertionError, ValueError, TypeError) as error:
        raise UsageError(f"task `{name}` refuses its parameters: {error}", where="dataset.params") from error
    finally:
        random.setstate(state)
