"""The launcher `kubernetes` against an API server that keeps what it is sent and shows pods where workers run."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from monarch.config import configured
from workers import workers

from forge_host.errors import UsageError
from forge_host.runtime.kubernetes import KubernetesLauncher, make_job

pytest.importorskip("kubernetes", reason="the launcher's client package is not installed: pip install kubernetes")
MESHES = "/apis/monarch.pytorch.org/v1alpha1/namespaces/rl/monarchmeshes"


class Api:
    """`pods` are given out to whoever watches; `calls` holds (method, path, body)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict]] = []
        self.pods: list[dict] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/api/v1/namespaces/rl/pods":
                    self.answer(200, *({"type": "ADDED", "object": pod} for pod in api.pods))
                else:
                    self.answer(404, {"kind": "Status", "code": 404})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.calls.append(("POST", self.path, body))
                self.answer(201, body)

            def do_DELETE(self) -> None:
                api.calls.append(("DELETE", self.path, {}))
                self.answer(200, {"kind": "Status"})

            def answer(self, code: int, *objects: dict) -> None:
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                for item in objects:
                    self.wfile.write(json.dumps(item).encode() + b"\n")

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self, folder: Path) -> str:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        entry = {"cluster": "c", "user": "u"}
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "u", "user": {}}],
                    "clusters": [{"name": "c", "cluster": {"server": url}}],
                    "contexts": [{"name": "x", "context": entry}],
                }
            )
        )  # fmt: skip
        return str(path)


@pytest.fixture
def api():
    found = Api()
    yield found
    found.server.shutdown()
    found.server.server_close()


def pod(rank: int, port: int) -> dict:
    container = {"name": "worker", "env": [{"name": "MONARCH_PORT", "value": str(port)}]}
    return {
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": f"hosts-{rank}", "labels": {"apps.kubernetes.io/pod-index": str(rank)}},
        "spec": {"containers": [container]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def test_the_spec_that_is_sent_and_deleted(api, tmp_path) -> None:
    launcher = KubernetesLauncher(
        nodes=2, image="registry/forge-host:0.1", gpus_per_node=4, cpus_per_node=16, memory="64Gi",
        shared_memory="16Gi", namespace="rl", mesh="hosts", port=2600, kubeconfig=api.kubeconfig(tmp_path),
    )  # fmt: skip
    with configured():  # Monarch's class chooses this process's transport, which is the other tests' too
        job = make_job(launcher)
    job.apply()
    ((method, path, body),) = api.calls
    assert (method, path, body["kind"]) == ("POST", MESHES, "MonarchMesh")
    assert body["metadata"] == {"name": "hosts", "namespace": "rl"}
    assert (body["spec"]["replicas"], body["spec"]["port"]) == (2, 2600)
    (container,) = body["spec"]["podTemplate"]["spec"]["containers"]
    assert container["image"] == "registry/forge-host:0.1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "cpu": "16", "memory": "64Gi"}
    (volume,) = body["spec"]["podTemplate"]["spec"]["volumes"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert [host.gpus for host in launcher.hosts()] == [tuple("0123")] * 2
    job.kill()
    assert api.calls[-1][:2] == ("DELETE", f"{MESHES}/hosts")


@pytest.mark.slow
def test_a_run_in_pods_that_are_there(api, fake_run, tmp_path, tmp_path_factory) -> None:
    """From outside the cluster through the first pod, as `kubeconfig` says."""
    folder = tmp_path_factory.mktemp("pods")
    with workers({}, {}, folder=folder) as addresses:
        api.pods = [pod(rank, int(address.rpartition(":")[2])) for rank, address in enumerate(addresses)]
        done = fake_run(
            launcher={
                "use": "kubernetes", "nodes": 2, "label_selector": "app=monarch", "namespace": "rl", "mesh": "hosts",
                "kubeconfig": api.kubeconfig(tmp_path), "gateway": f"tcp://{addresses[0]}",
                "python": sys.executable,
            },
        )  # fmt: skip
    assert done.code == 0, done.err
    assert len(done.metrics) == 3 and not api.calls


def test_what_is_missing_or_wrong_is_said(api, fake_run, tmp_path) -> None:
    with pytest.raises(UsageError, match="launcher kubernetes needs either image or label_selector"):
        KubernetesLauncher().hosts()
    with pytest.raises(UsageError, match="launcher.mesh: Mesh name 'My_Mesh' is invalid"):
        make_job(KubernetesLauncher(image="x", mesh="My_Mesh"))
    done = fake_run(launcher={"use": "kubernetes", "image": "x", "kubeconfig": str(tmp_path / "none")})
    assert done.code == 4 and "Kubernetes: Failed to load kubeconfig file" in done.err
