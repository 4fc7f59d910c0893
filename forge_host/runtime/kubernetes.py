"""The launcher `kubernetes`: pods of the MonarchMesh operator through Monarch's `KubernetesJob`.

    launcher: {use: kubernetes, nodes: 2, gpus_per_node: 8, image: registry/forge-host:0.1, namespace: rl}

With `image` the run makes its own pods and deletes them at its end; the image holds the same Python environment as the
controller's (the plugin lock is compared). With `label_selector` it uses pods that are there. Needs `pip install
kubernetes`, and the cluster the operator (https://github.com/meta-pytorch/monarch-kubernetes).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from attrs.validators import ge, gt, optional

from forge_host.errors import RunError, UsageError
from forge_host.runtime.hosts import Host, promised
from forge_host.runtime.launch import Allocation, stop_mesh
from forge_host.types import field


@attrs.define(kw_only=True)
class KubernetesLauncher:
    """Pods of a Kubernetes cluster, one a host."""

    nodes: int = field(default=1, help="pods to ask for", validator=ge(1))
    image: str | None = field(default=None, help="container image of the pods; null uses pods that are there")
    label_selector: str | None = field(default=None, help="labels that select pods that are there")
    gpus_per_node: int = field(default=0, help="GPUs of each pod (nvidia.com/gpu)", validator=ge(0))
    cpus_per_node: int | None = field(default=None, help="cores of each pod", validator=optional(ge(1)))
    memory: str | None = field(default=None, help="memory of each pod, such as 64Gi")
    shared_memory: str | None = field(default=None, help="size of /dev/shm of each pod, such as 16Gi")
    namespace: str = field(default="default", help="namespace of the pods")
    mesh: str = field(default="forgehost", help="name of the MonarchMesh; lower-case letters and digits")
    port: int = field(default=26600, help="TCP port of the workers in the pods", validator=gt(0))
    kubeconfig: str | None = field(default=None, help="file to reach the cluster from outside; null is inside a pod")
    gateway: str | None = field(
        default=None,
        help="address of a pod's worker that is forwarded to here (tcp://127.0.0.1:PORT); null forwards one by itself",
    )
    start_timeout: float = field(default=600.0, help="the pods must be ready by then", unit="s", validator=gt(0))
    connect_timeout: float = field(default=60.0, help="every pod must answer by then", unit="s", validator=gt(0))
    python: str = field(default="python", help="interpreter in the pods")

    grow = "launcher.nodes"
    _job: Any = attrs.field(default=None, init=False)
    _mesh: Any = attrs.field(default=None, init=False)

    def hosts(self) -> Sequence[Host]:
        if (self.image is None) == (self.label_selector is None):
            raise UsageError("launcher kubernetes needs either image or label_selector", where="launcher")
        cpus = self.cpus_per_node or os.cpu_count() or 1
        return [promised(f"pod {i}", cpus=cpus, gpus=self.gpus_per_node) for i in range(self.nodes)]

    async def open(self) -> Allocation:
        from forge_host.runtime.attach import answers, listen_for

        self._job = job = make_job(self)
        # From outside, everything goes through the connection to one pod; inside, pods call back by this one's name.
        listen_for(["127.0.0.1"] if self.kubeconfig or self.gateway else ["pod"])

        def prepare() -> None:
            job.apply()
            job._prepare_client_gateway()  # waits until the pods are ready

        try:
            await in_thread(prepare)
        except RuntimeError as error:  # Monarch's word for an unreachable cluster and for pods that did not come
            raise RunError(f"Kubernetes: {error}", fix="check launcher.namespace, kubeconfig and the pods") from error
        except Exception as error:
            raise RunError(
                f"Kubernetes: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                fix="check launcher.kubeconfig, and that the MonarchMesh operator is installed",
            ) from error
        pods = next(iter(job._prepared_mesh_pods.values()))
        self._mesh = getattr(job.state(cached_path=None), self.mesh)
        names = tuple(f"{pod.name} ({pod.ip})" for pod in pods)
        if not await answers(self._mesh, self.connect_timeout):
            raise RunError(
                f"the workers in {', '.join(names)} did not answer within {self.connect_timeout:g} s",
                fix="check that the image has the same torchmonarch, and that pods reach this process by TCP",
            )
        return Allocation(
            mesh=self._mesh, names=names, addresses=tuple(pod.ip for pod in pods), python=self.python
        )

    async def close(self) -> None:
        """Delete the pods that the run made; stop its processes in those that were there."""
        job, mesh, self._job, self._mesh = self._job, self._mesh, None, None
        if job is None:
            return
        if self.image is not None:
            await in_thread(job.kill)
        elif mesh is not None:
            await stop_mesh(mesh)


def make_job(launcher: KubernetesLauncher) -> Any:
    """Monarch's job for these settings.

    Raises:
        UsageError: the package `kubernetes` is missing, or the mesh's name is not allowed.
    """
    try:
        from monarch._src.job import kubernetes
    except RuntimeError as error:
        raise UsageError("launcher kubernetes needs the package kubernetes", fix="pip install kubernetes") from error
    kubernetes.logger.setLevel(logging.WARNING)
    config = kubernetes.KubeConfig.from_path(launcher.kubeconfig) if launcher.kubeconfig else None
    job = kubernetes.KubernetesJob(
        launcher.namespace, timeout=int(launcher.start_timeout), kubeconfig=config, attach_to=launcher.gateway
    )
    image = None
    if launcher.image is not None:
        resources: dict[str, str | int] = {}
        if launcher.gpus_per_node:
            resources["nvidia.com/gpu"] = launcher.gpus_per_node
        if launcher.cpus_per_node:
            resources["cpu"] = launcher.cpus_per_node
        if launcher.memory:
            resources["memory"] = launcher.memory
        image = kubernetes.ImageSpec(
            launcher.image, resources=resources or None, shared_memory_size=launcher.shared_memory
        )
    try:
        job.add_mesh(
            launcher.mesh, launcher.nodes, image_spec=image, port=launcher.port, label_selector=launcher.label_selector
        )
    except ValueError as error:
        raise UsageError(str(error).rstrip("."), where="launcher.mesh") from error
    return job


async def in_thread(function: Callable[[], None]) -> None:
    """Run a call that may block for minutes; unlike a pool's, its thread does not keep an interrupted run alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        error: BaseException | None = None
        try:
            function()
        except BaseException as caught:  # handed to the waiting coroutine; Monarch's panics are no `Exception`s
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=work, daemon=True, name="kubernetes").start()
    await done
