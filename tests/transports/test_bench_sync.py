"""The sync benchmark measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_host.errors import PluginError, UsageError
from forge_host.loop import bench_sync as bench


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.MODELS, "135M", (2, 64, 128, 32, 1000, False))


def test_rows(tmp_path: Path) -> None:
    (row,) = bench.bench_sync(["builtin/file"], repeats=3, config={"directory": str(tmp_path)})
    assert row.num_tensors == 3 + 2 * 9
    assert row.num_bytes == 2 * (2 * 1000 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64))
    assert row.ratio == pytest.approx((row.publish_s + row.fetch_s) / (2 * row.memcpy_s))
    assert row.publish_s > 0 and "GB/s" in str(row)
    assert list(tmp_path.iterdir()) == []


def test_fit_separates_fixed_and_per_byte_cost() -> None:
    rows = [
        bench.SyncTimes(
            transport="t", model="m", num_bytes=size, num_tensors=1, publish_s=0.1, fetch_s=size * 1e-9, memcpy_s=1.0
        )
        for size in (10**6, 10**8, 10**9)
    ]
    assert bench.fit(rows) == pytest.approx((0.1, 1e-9))


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="no model size '9B'; take one of 135M"):
        next(bench.bench_sync(["builtin/shm"], models=["9B"]))
    with pytest.raises(PluginError, match="no-such"):
        next(bench.bench_sync(["no-such"]))
