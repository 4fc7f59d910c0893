"""The launcher `slurm`: asks SLURM for nodes through Monarch's `SlurmJob`, and gives them back when the run ends.

    forge-host run --config c.yaml --launcher slurm --set launcher.nodes=2 --set launcher.gpus_per_node=8

It is started where `sbatch` works (a login node) and stays there as the controller; the nodes must share the file
system that holds the Python environment, the model and the run directory, and reach the login node by TCP. To run the
controller inside the allocation, use `contrib/slurm/forge.sbatch`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import attrs
from attrs.validators import ge, gt, optional

from forge_host.errors import RunError, UsageError
from forge_host.runtime.hosts import Host, promised
from forge_host.runtime.launch import Allocation
from forge_host.types import field

POLL_S = 1.0
ENDED = ("FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "COMPLETED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")


@attrs.define(kw_only=True)
class SlurmLauncher:
    """Nodes of a SLURM cluster for the length of a run. What is null is left to the cluster's defaults."""

    nodes: int = field(default=1, help="nodes to ask for", validator=ge(1))
    gpus_per_node: int = field(default=0, help="GPUs of each node to ask for", validator=ge(0))
    cpus_per_node: int | None = field(default=None, help="cores of each node to ask for", validator=optional(ge(1)))
    memory: str | None = field(default=None, help="memory of each node, as sbatch --mem takes it")
    partition: str | None = field(default=None, help="partition")
    account: str | None = field(default=None, help="account to charge")
    qos: str | None = field(default=None, help="quality of service")
    time_limit: str | None = field(default=None, help="longest duration, as sbatch --time takes it")
    exclusive: bool = field(default=True, help="share the nodes with no other job")
    sbatch_args: tuple[str, ...] = field(default=(), help="further options of sbatch, such as --constraint=h100")
    job_name: str = field(default="forge-host", help="name of the job")
    port: int = field(default=22222, help="TCP port of the workers on the nodes", validator=gt(0))
    log_dir: str = field(default="runs/slurm", help="folder of the job's output; the nodes must see it")
    start_timeout: float | None = field(
        default=None, help="the job must have started by then; null waits in the queue without end", unit="s",
        validator=optional(gt(0)),
    )  # fmt: skip
    connect_timeout: float = field(default=120.0, help="every node must answer by then", unit="s", validator=gt(0))
    python: str | None = field(default=None, help="interpreter on the nodes; null is the same path as here")

    grow = "launcher.nodes"
    _job: Any = attrs.field(default=None, init=False)

    def hosts(self) -> Sequence[Host]:
        cpus = self.cpus_per_node or os.cpu_count() or 1
        return [promised(f"node {i}", cpus=cpus, gpus=self.gpus_per_node) for i in range(self.nodes)]

    async def open(self) -> Allocation:
        for command in ("sbatch", "squeue", "scancel", "scontrol"):
            if shutil.which(command) is None:
                raise UsageError(
                    f"launcher slurm needs `{command}`, which is not on PATH", fix="start the run on a login node"
                )
        from forge_host.runtime.attach import answers, listen_for

        self._job = make_job(self)
        try:
            self._job.apply()
        except RuntimeError as error:
            raise RunError(str(error).strip(), fix="check the keys of `launcher`") from error
        names = await self._started(self._job._slurm_job_id)
        self._job._all_hostnames = list(names)
        listen_for(names)
        mesh = self._job.state(cached_path=None).hosts
        if not await answers(mesh, self.connect_timeout):
            raise RunError(
                f"the workers of SLURM job {self._job._slurm_job_id} on {', '.join(names)} did not answer within "
                f"{self.connect_timeout:g} s",
                fix=f"see {self._job._log_dir}, and raise launcher.connect_timeout if the nodes start slowly",
            )
        return Allocation(mesh=mesh, names=names, addresses=names, python=self.python)

    async def close(self) -> None:
        """Cancel the job, waiting in the queue or running."""
        job, self._job = self._job, None
        if job is not None:
            await asyncio.to_thread(job.kill)

    async def _started(self, job_id: str) -> tuple[str, ...]:
        """Names of the job's nodes once it runs.

        Raises:
            RunError: it ended before, or did not start in time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + (self.start_timeout or float("inf"))
        while True:
            state, nodes = await asyncio.to_thread(queue_state, job_id)
            if state == "RUNNING":
                return await asyncio.to_thread(expand, nodes)
            if state is None or state in ENDED:
                raise RunError(
                    f"SLURM job {job_id} ended before it ran ({state or 'it is not in the queue'})",
                    fix=f"see {self._job._log_dir} and `scontrol show job {job_id}`",
                )
            if loop.time() > end:
                raise RunError(
                    f"SLURM job {job_id} did not start within {self.start_timeout:g} s ({state}: {nodes})",
                    fix="raise launcher.start_timeout, or ask for less",
                )
            await asyncio.sleep(POLL_S)


def queue_state(job_id: str) -> tuple[str | None, str]:
    """A job's state and its nodes (why it waits while it does); None when SLURM does not know it any more."""
    done = subprocess.run(
        ["squeue", "--noheader", "--job", job_id, "--states=all", "--format=%T|%R|%N"], capture_output=True, text=True
    )
    state, _, rest = done.stdout.strip().partition("|")
    reason, _, nodes = rest.partition("|")
    return state or None, nodes or reason


def expand(nodes: str) -> tuple[str, ...]:
    """ "n[1-2]" as ("n1", "n2")."""
    done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    return tuple(done.stdout.split())


def make_job(launcher: SlurmLauncher) -> Any:
    """Monarch's job for these settings; `_submit_slurm_job` writes and submits its batch script."""
    from monarch._src.job import slurm

    slurm.logger.setLevel(logging.WARNING)

    class Job(slurm.SlurmJob):  # type: ignore[misc]
        """Monarch reads `squeue --json`, whose form changed between SLURM releases; the text form did not."""

        def _get_job_info_json(self, job_id: str) -> dict[str, Any] | None:
            state, _ = queue_state(job_id)
            return None if state is None else {"job_state": [state]}

    args = [*launcher.sbatch_args]
    if launcher.gpus_per_node:
        args.append(f"--gpus-per-node={launcher.gpus_per_node}")
    return Job(
        {"hosts": launcher.nodes},
        python_exe=launcher.python or sys.executable,
        slurm_args=args,
        monarch_port=launcher.port,
        job_name=launcher.job_name,
        time_limit=launcher.time_limit,
        partition=launcher.partition,
        log_dir=os.path.abspath(launcher.log_dir),
        exclusive=launcher.exclusive,
        cpus_per_task=launcher.cpus_per_node,
        mem=launcher.memory,
        account=launcher.account,
        qos=launcher.qos,
    )
