"""A whole run over several hosts, and the plugin lock on each of them."""

import hashlib
import json
import sys
import sysconfig
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from workers import workers

HERE = Path(__file__).parent
PLUGIN = '''
from forge_host.api import ComponentSpec, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_rewards(host):
    return [ComponentSpec("marked", "counted:marked", "share of b, and the host that graded")]


def marked(response):
    import os

    from forge_host.api import RewardResult

    return RewardResult(response.count("b") / max(len(response), 1), {}, os.environ.get("HOST_MARK", "controller"))
'''


def install(folder: Path, version: str, extra: str = "") -> str:
    """Distribution forge-plugin-counted as an installer leaves it."""
    info = folder / f"forge_plugin_counted-{version}.dist-info"
    info.mkdir(parents=True)
    files = {
        folder / "counted.py": PLUGIN + extra,
        info / "METADATA": f"Metadata-Version: 2.1\nName: forge-plugin-counted\nVersion: {version}\n",
        info / "entry_points.txt": "[forge_host.plugins]\ncounted = counted\n",
    }
    record = ""
    for path, text in files.items():
        path.write_text(text)
        digest = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path.relative_to(folder)},sha256={digest},{len(text)}\n"
    (info / "RECORD").write_text(record)
    return str(folder)


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """Not the run's, whose name in a process's environment tells `fake_run` that the run left it behind."""
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture
def counted(folder, monkeypatch) -> str:
    """The plugin, installed for the run's own process and what inherits its environment."""
    path = install(folder / "one", "1.0")
    monkeypatch.setenv("PYTHONPATH", path)
    return path


def test_a_run_over_three_hosts(fake_run, counted, folder) -> None:
    marks = [{"HOST_MARK": f"h{i}"} for i in range(3)]
    with workers(*marks, folder=folder, path=counted) as addresses:
        done = fake_run(
            "--plugins", "counted", launcher={"use": "attach", "workers": addresses}, rewards=["counted/marked"],
            services={"generator": {"num_replicas": 2}, "reward": {"num_replicas": 3}},
        )  # fmt: skip
    assert done.code == 0, done.err
    assert len(done.metrics) == 3 and done.metrics[-1]["metrics"]["sync/verified"] == 6
    graded = [row for row in done.rollouts if row["step"] in (1, 2, 3)]
    assert {row["note"] for row in graded} == {"marked: h0", "marked: h1", "marked: h2"}
    started = [json.loads(line) for line in (done.dir / "logs" / "controller.jsonl").read_text().splitlines()]
    chosen = next(line for line in started if line["event"] == "transport chosen")
    assert chosen["transport"] == "builtin/file" and "trainer is on host 0" in chosen["reason"]


@pytest.mark.parametrize(
    ("version", "extra", "words"),
    [
        ("2.0", "", "plugin `counted` is forge-plugin-counted 2.0, the lock has forge-plugin-counted 1.0"),
        ("1.0", "\nLATER = True\n", "plugin `counted` (forge-plugin-counted 1.0) has other files"),
    ],
)
def test_a_host_with_another_wheel_ends_the_run_by_name_before_a_model_loads(
    fake_run, counted, folder, version, extra, words
) -> None:
    other = {"PYTHONPATH": install(folder / "two", version, extra)}
    with workers({}, other, folder=folder, path=counted) as addresses:
        done = fake_run(
            "--plugins", "counted", launcher={"use": "attach", "workers": addresses}, rewards=["counted/marked"]
        )
        assert done.code == 3, done.err
        assert f"host tcp://{addresses[1]}: plugins differ from the lock: {words}" in done.err
    assert not list((done.dir / "logs").glob("trainer*")) and not list((done.dir / "logs").glob("generator*"))


def test_a_host_whose_python_has_no_forge_host_ends_the_run(fake_run, counted, folder) -> None:
    """Monarch and what it needs, but not forge-host: `python -S` with links to everything else."""
    others = folder / "others"
    others.mkdir()
    for entry in Path(sysconfig.get_path("purelib")), *map(Path, sys.path):
        for path in entry.iterdir() if entry.name == "site-packages" else ():
            if not path.name.startswith(("forge", "_editable", "__pycache__")) and path.suffix != ".pth":
                if not (others / path.name).exists():
                    (others / path.name).symlink_to(path)
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH={others} exec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with workers({}, folder=folder, path=counted) as addresses:
        done = fake_run(
            launcher={"use": "attach", "workers": addresses, "python": str(bare)}, monarch={"startup_timeout": 20}
        )
    assert done.code == 3, done.err
    assert "No module named 'forge_host'); install forge-host there" in done.err


def test_more_gpus_than_there_are_is_refused_before_a_cluster_is_asked(fake_run) -> None:
    done = fake_run(
        launcher={"use": "kubernetes", "image": "none", "nodes": 2, "gpus_per_node": 4},
        services={"trainer": {"procs": 8, "with_gpus": True}, "generator": {"procs": 2, "with_gpus": True}},
    )
    assert done.code == 2 and done.dir is None
    assert "10 GPUs asked for (generator 2 x 1, trainer 8 x 1), 8 there (2 hosts x 4)" in done.err
    assert "launcher.nodes: 3" in done.err or "colocate_with" in done.err
