"""The registry knows what a run writes; the machine's numbers are sane, cheap, and absent where there are none."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_runs import healthy

import forge_host
from forge_host.report.metrics import REGISTRY, describe, label
from forge_host.report.system import Gpus, SystemSampler


def test_names_units_and_reductions():
    assert label("policy/kl") == "policy/kl (nats/token)" and label("reward/mean") == "reward/mean"
    assert describe("reward/math/answered/mean").help == "mean of the reward part `math/answered`"
    assert describe("system/gpu3/memory_used_gb").unit == "GB"
    assert describe("reward/mean").help != describe("reward/x/mean").help
    assert describe("mine/own") is None
    assert {m.reduction for m in REGISTRY} <= {"mean", "sum", "max", "last", "ess"}
    assert len({m.name for m in REGISTRY}) == len(REGISTRY)


def test_every_metric_of_a_run_is_known():
    assert [name for name in healthy(1, 2) if describe(name) is None] == []


def test_every_metric_named_in_the_loop_is_known():
    """A name written by the loop or by an objective has its unit and its help."""
    root = Path(forge_host.__file__).parent
    found = set()
    for file in [*(root / "loop").glob("*.py"), root / "rl" / "observe.py"]:
        pattern = r'"((?:reward|policy|policy_age|response|time|tokens|buffer|sync|train|data|correction)/[\w/]+)"'
        found.update(re.findall(pattern, file.read_text()))
    assert len(found) > 30
    assert sorted(name for name in found if describe(name) is None) == []


def test_sampler_counts_the_processes_below():
    sample = SystemSampler()
    alone = sample()["system/rss_gb"]
    code = "x = bytearray(b'1') * 200_000_000; print(1, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline()
        together = sample()
        child.kill()
    assert together["system/rss_gb"] - alone > 0.15
    assert 0 < together["system/memory_used_gb"] < 10_000
    if "system/cpu_share" in together:
        assert 0 <= together["system/cpu_share"] <= 1


def test_sampler_is_cheap():
    sample = SystemSampler()
    sample()
    began = time.process_time()
    for _ in range(20):
        sample()
    assert (time.process_time() - began) / 20 < 0.05, "0.5% of a step of ten seconds"


def test_a_machine_without_any_of_it(tmp_path):
    (tmp_path / "proc").mkdir()
    sample = SystemSampler(proc=str(tmp_path / "proc"), shm=str(tmp_path / "none"), nvml="libnone.so")
    assert sample() == {"system/rss_gb": 0.0}


def test_processes_that_end_meanwhile(tmp_path):
    folder = tmp_path / "proc" / "4000000"
    folder.mkdir(parents=True)
    own = tmp_path / "proc" / str(os.getpid())
    own.mkdir()
    (own / "stat").write_text("1 (name) with) S 1 1")
    (own / "statm").write_text("10 5 0")
    sample = SystemSampler(proc=str(tmp_path / "proc"), shm="/", nvml="libnone.so")
    assert sample()["system/rss_gb"] == pytest.approx(5 * os.sysconf("SC_PAGE_SIZE") / 1e9)


NVML = r"""
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } busy_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **h) { *h = (void *)(0x700000000UL + i); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { m->used = 70000000000ULL + (unsigned long)h % 16; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, busy_t *b) { b->gpu = 42; return (unsigned long)h % 16 ? 3 : 0; }
"""


def test_gpus_through_the_drivers_library(tmp_path):
    """A library with NVML's signatures: two GPUs, the second of which does not tell its utilisation."""
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    found = Gpus(str(library))()
    assert found["system/gpu0/memory_used_gb"] == pytest.approx(70.0) and found["system/gpu0/utilisation"] == 0.42
    assert "system/gpu1/memory_used_gb" in found and "system/gpu1/utilisation" not in found
    assert Gpus("libnone.so")() == {}
