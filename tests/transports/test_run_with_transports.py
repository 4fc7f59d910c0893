"""Whole runs over the transports that need Monarch: published by a trainer actor, loaded by a generator actor."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_config, fake_run, letters_model  # noqa: F401


@pytest.mark.parametrize("transport", ["rdma/rdma", "torchstore/torchstore"])
def test_a_run_over(fake_run: Any, transport: str) -> None:  # noqa: F811
    if transport == "torchstore/torchstore" and importlib.util.find_spec("torchstore") is None:
        pytest.skip("TorchStore is not installed (its plugin's README has the command)")
    before = set(Path("/dev/shm").iterdir())
    run = fake_run(timeout=240, training={"max_steps": 3}, transport={"use": transport})
    assert run.code == 0, run.err
    assert run.metrics[-1]["metrics"]["sync/verified"] == 3
    left = [path for path in set(Path("/dev/shm").iterdir()) - before if "torch_" in path.name]
    assert left == []
