"""W&B: the contracts on offline runs, read back from W&B's own file, and when it is online or not."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
import wandb
from forge_plugin_wandb.tracker import WeightsAndBiases, has_key

from forge_host.api import RunInfo, StepReport
from forge_host.testing import PluginContract, TrackerContract


def records(directory: Path) -> list[Any]:
    """Records of a finished run; W&B's own process writes the last of them a moment after `finish`."""
    deadline = time.monotonic() + 20
    while True:
        found = list(_records(directory))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < deadline, "the run's file has no end"
        time.sleep(0.05)


def _records(directory: Path) -> Iterator[Any]:
    """Records of an offline run's file: a 7-byte head, then blocks of 32 KiB with pieces of (crc, length, type)."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _crc, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0 or at + 7 + length > len(data):
            break
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield Record.FromString(whole)
            whole = b""


def read(directory: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for record in records(directory):
        if record.WhichOneof("record_type") == "history":
            values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            found[int(values["_step"])] = values
    return found


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path_factory):
    """The tests use nobody's key, and write below the test's folder only."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(home / name))
    return home


class TestPlugin(PluginContract):
    plugin = "wandb"


class TestWeightsAndBiases(TrackerContract):
    ref = "wandb/wandb"
    config = {"mode": "offline"}

    def logged(self, directory: Path) -> dict[int, dict[str, float]]:
        return read(directory)


def info(folder: Path) -> RunInfo:
    return RunInfo(id="run-1", directory=str(folder), config={"model": "smollm2", "path": folder})


def test_without_a_key_it_is_offline_and_says_so(tmp_path):
    tracker = WeightsAndBiases(project="math")
    with structlog.testing.capture_logs() as logs:
        tracker.start(info(tmp_path))
        tracker.log(StepReport(step=1, policy_version=3, time=1.0, metrics={"reward/mean": 0.5}))
        tracker.finish({"status": "failed", "error": "trainer-0 died", "samples": ["secret"]})
    assert [entry["event"] for entry in logs] == ["no W&B key (WANDB_API_KEY or `wandb login`)", "W&B is offline"]
    assert logs[1]["upload"].startswith("wandb sync /") and "offline-run-" in logs[1]["upload"]
    assert read(tmp_path)[1]["reward/mean"] == 0.5 and read(tmp_path)[1]["policy_version"] == 3
    text = b"".join(r.SerializeToString() for r in records(tmp_path))
    assert b"smollm2" in text and b"trainer-0 died" in text and b"secret" not in text


def test_keys_are_found_where_wandb_finds_them(no_account, monkeypatch):
    assert not has_key()
    host = urlsplit(wandb.Settings().base_url).hostname
    (no_account / "netrc").write_text(f"machine {host} login user password abc\n")
    assert has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_key()
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    assert has_key()
    (no_account / "netrc").write_text("machine {")
    monkeypatch.delenv("WANDB_API_KEY")
    assert not has_key()


def test_a_server_that_does_not_answer_makes_it_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    tracker = WeightsAndBiases(timeout_s=3)
    with structlog.testing.capture_logs() as logs:
        tracker.start(info(tmp_path))
        tracker.log(StepReport(step=1, policy_version=1, time=1.0, metrics={"reward/mean": 0.5}))
        tracker.finish({"status": "done"})
    assert logs[0]["event"] == "W&B is not reached; this run is recorded offline"
    assert read(tmp_path)[1]["reward/mean"] == 0.5


def test_the_environment_can_turn_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker = WeightsAndBiases()
    tracker.start(info(tmp_path))
    tracker.log(StepReport(step=1, policy_version=1, time=1.0, metrics={"reward/mean": 0.5}))
    tracker.finish({"status": "done"})
    assert not list(tmp_path.rglob("*.wandb"))
