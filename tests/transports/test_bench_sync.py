"""The sync benchmark measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from forge_host.cli.bench_sync import sync
from forge_host.errors import PluginError, RunError, UsageError
from forge_host.loop import bench_sync as bench
from forge_host.loop.bench_cycles import bench_cycles


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.MODELS, "135M", (2, 64, 128, 32, 1000, False))
    monkeypatch.setitem(bench.MODELS, "0.6B", (3, 64, 128, 32, 2000, True))


def test_rows(tmp_path: Path) -> None:
    (row,) = bench.bench_sync(["builtin/file"], repeats=3, config={"directory": str(tmp_path)})
    assert row.num_tensors == 3 + 2 * 9
    assert row.num_bytes == 2 * (2 * 1000 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64))
    assert row.ratio == pytest.approx((row.publish_s + row.fetch_s) / (2 * row.copy_s))
    assert row.publish_s > 0 and row.rate == pytest.approx(row.num_bytes / (row.publish_s + row.fetch_s))
    assert list(tmp_path.iterdir()) == []


def test_fit_separates_fixed_and_per_byte_cost() -> None:
    one = bench.SyncTimes(
        transport="t", model="m", device="cpu", num_bytes=1, num_tensors=1, publish_s=0.1, fetch_s=1.0, copy_s=1.0
    )
    rows = [attrs.evolve(one, num_bytes=size, fetch_s=size * 1e-9) for size in (10**6, 10**8, 10**9)]
    assert bench.fit(rows) == pytest.approx((0.1, 1e-9))


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(sync, ["builtin/shm", "--models", "135M,0.6B", "--repeats", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(row["model"], row["num_tensors"]) for row in found["rows"]] == [("135M", 21), ("0.6B", 29)]
    assert found["fits"].keys() == {"builtin/shm"} and all(row["ratio"] > 0 for row in found["rows"])
    setting = f"directory={tmp_path / 'made'}"
    done = CliRunner().invoke(sync, ["builtin/file", "--set", setting, "--models", "135M", "--repeats", "1"])
    assert done.exit_code == 0 and (tmp_path / "made").is_dir()
    head, _, row = done.stdout.splitlines()
    assert "2 memcpys ms" in head and row.startswith("builtin/file  135M")


def test_a_size_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "available_bytes", lambda: 3 << 20)
    done = CliRunner().invoke(sync, ["builtin/shm", "--models", "135M,8B", "--repeats", "1"])
    assert "left out: 8B needs 91.54 GiB (6 times its 15.26 GiB), 0.00 GiB are free on cpu" in done.stderr
    assert "135M" in done.stdout and "8B" not in done.stdout
    done = CliRunner().invoke(sync, ["builtin/shm", "--models", "8B"])
    assert isinstance(done.exception, RunError) and "no model size fits" in str(done.exception)


def test_cycles_count_what_is_held() -> None:
    rows = list(bench_cycles("builtin/shm", cycles=100))
    assert [row.cycle for row in rows] == list(range(0, 110, 10))
    assert len({(row.publisher_files, row.reader_files) for row in rows}) == 1
    assert all(row.publisher_bytes > 1 << 20 and row.reader_bytes > 1 << 20 for row in rows)


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="no model size '9B'; take one of 135M"):
        next(bench.bench_sync(["builtin/shm"], models=["9B"]))
    with pytest.raises(PluginError, match="no-such"):
        next(bench.bench_sync(["no-such"]))
    for device, message in (("tpu", "no device 'tpu'"), ("cuda:99", "device cuda:99 is not here")):
        done = CliRunner().invoke(sync, ["--device", device])
        assert isinstance(done.exception, UsageError) and message in str(done.exception)
    assert CliRunner().invoke(sync, ["--set", "x"]).exit_code == 2
