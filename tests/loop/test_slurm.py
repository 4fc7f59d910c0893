"""Runs on a real SLURM, slurmctld and slurmd of this machine (Debian: apt-get install slurm-wlm, as .ci/run does)."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
from monarch.config import configured
from workers import free_port

from forge_host.runtime.slurm import SlurmLauncher, make_job

REPO = Path(__file__).parents[2]
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
KillWait=1
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerParameters=sched_min_interval=0,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of one node; its folder."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name, path=SBIN) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'SLURM'} (Debian: apt-get install slurm-wlm)")
    host = socket.gethostname()
    try:
        socket.gethostbyname(host)
    except OSError:
        pytest.skip(f"this machine's name {host} does not resolve, so a SLURM node of that name cannot be reached")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("spool", "state"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, ctld=free_port(), slurmd=free_port(), cpus=os.cpu_count()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        patch.setenv("PATH", SBIN)
        daemons = []
        for name in ("slurmctld", "slurmd"):
            with open(folder / f"{name}.out", "wb") as out:
                daemons.append(subprocess.Popen([name, "-D"], stdout=out, stderr=out))
        try:
            deadline = time.monotonic() + 60
            while "idle" not in queue("sinfo", "--noheader", "--format=%T"):
                assert time.monotonic() < deadline, (folder / "slurmctld.out").read_text()[-2000:]
                time.sleep(0.2)
            yield folder
        finally:
            for daemon in daemons:
                daemon.terminate()
                daemon.wait(20)


SBIN = f"{os.environ['PATH']}:/usr/sbin"


def queue(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_run_submits_its_job_uses_the_node_and_gives_it_back(cluster, fake_run, tmp_path) -> None:
    launcher = {
        "nodes": 1, "port": free_port(), "exclusive": False, "job_name": "mine", "log_dir": str(cluster / "out"),
    }  # fmt: skip
    done = fake_run("--launcher", "slurm", launcher={"use": "slurm", **launcher}, services={"reward": {"procs": 1}})
    assert done.code == 0, done.err
    assert len(done.metrics) == 3
    states = queue("squeue", "--noheader", "--states=all", "--format=%T %j").splitlines()
    assert states and all(line.startswith(("CANCELLED mine", "COMPLETING mine")) for line in states), states


@pytest.mark.slow
def test_the_batch_script_runs_the_controller_inside_the_allocation(cluster, fake_config, tmp_path) -> None:
    forge = tmp_path / "forge-host"
    forge.write_text(f'#!/bin/sh\nexec {sys.executable} -m forge_host.cli.main "$@"\n')
    forge.chmod(0o755)
    command = ["sbatch", "--wait", "--nodes=1", "--output", str(tmp_path / "job.log")]
    command += [str(REPO / "contrib/slurm/forge.sbatch"), fake_config()]
    command += ["--plugin-file", str(Path(__file__).parent / "fake_roles.py"), "--set", "training.max_steps=2"]
    env = {**os.environ, "FORGE_HOST": str(forge), "FORGE_PORT": str(free_port())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, cwd=REPO)
    log = (tmp_path / "job.log").read_text() if (tmp_path / "job.log").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert '"status": "done"' in summary.read_text()


def test_a_job_that_cannot_be_is_named(cluster, fake_run) -> None:
    done = fake_run(launcher={"use": "slurm", "partition": "nosuch", "log_dir": str(cluster / "out")})
    assert done.code == 4 and "invalid partition" in done.err.lower() and "check the keys of `launcher`" in done.err


def test_the_script_that_is_submitted(monkeypatch, tmp_path) -> None:
    """What Monarch's job class writes for our keys, with `sbatch` replaced by a file."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\ncat > {tmp_path}/script\necho Submitted batch job 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    launcher = SlurmLauncher(
        nodes=2, gpus_per_node=8, cpus_per_node=64, memory="500G", partition="gpu", account="lab", qos="high",
        time_limit="12:00:00", sbatch_args=("--constraint=h100",), log_dir=str(tmp_path / "out"), port=2345,
    )  # fmt: skip
    with configured():  # Monarch's class chooses this process's transport, which is the other tests' too
        job = make_job(launcher)
        job.apply()
    assert job._slurm_job_id == "7"
    script = (tmp_path / "script").read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.M))
    assert {key: value for key, value in options.items() if key not in ("job-name", "output", "error")} == {
        "nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "8", "cpus-per-task": "64", "mem": "500G",
        "partition": "gpu", "account": "lab", "qos": "high", "time": "12:00:00", "exclusive": "",
        "constraint": "h100",
    }  # fmt: skip
    assert f"srun {sys.executable} -c" in script and ":2345" in script
    assert [host.gpus for host in launcher.hosts()] == [tuple("01234567")] * 2
    assert attrs.evolve(launcher, cpus_per_node=3).hosts()[0].num_cpus == 3
