"""The built-in transports keep the contract; what only they promise is tested here."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from forge_host.builtin.transports import memory
from forge_host.builtin.transports.auto import choose_transport
from forge_host.builtin.transports.file import OWNER, Files
from forge_host.builtin.transports.shm import SharedMemory
from forge_host.errors import RunError, UsageError
from forge_host.runtime.placement import Place, Spot
from forge_host.testing import TransportContract
from forge_host.testing.transport import copied, is_version, weights
from forge_host.types import Use


class TestSharedMemory(TransportContract):
    transport = "builtin/shm"


class TestFiles(TransportContract):
    transport = "builtin/file"
    cycles = 500  # each waits for the disk four times

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"directory": str(tmp_path)}


# --- shm --------------------------------------------------------------------------------------------------------------


def test_shm_reuses_its_memory() -> None:
    """Many versions take the memory of two."""
    with closing(SharedMemory()) as transport:
        receipts = [transport.publish(v, weights(v).items()) for v in range(1, 11)]
        assert len({r.location["fd"] for r in receipts}) == 2


def test_shm_does_not_reuse_leased_memory() -> None:
    with closing(SharedMemory()) as transport:
        held = transport.fetch(transport.publish(1, weights(1).items()))
        next(held)
        fds = [transport.publish(v, weights(v).items()).location["fd"] for v in (2, 3)]
        assert len(set(fds)) == 2


def test_shm_tells_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100 << 20)
    with closing(SharedMemory()) as transport:
        with pytest.raises(RunError, match=r"publish the weights: 0\.13 GiB needed, 0\.10 GiB available"):
            transport.publish(1, [("big", torch.empty(1 << 27, dtype=torch.uint8))])
        assert is_version(copied(transport, transport.publish(1, weights(1).items())), 1)


def test_shm_refuses_another_host() -> None:
    with closing(SharedMemory()) as transport:
        receipt = transport.publish(1, weights(1).items())
        elsewhere = attrs.evolve(receipt, location={**receipt.location, "boot": "another"})
        with pytest.raises(RunError, match="another host's memory"):
            transport.fetch(elsewhere)


def test_shm_refuses_another_file_at_that_descriptor(tmp_path: Path) -> None:
    """The publisher died and its process id and descriptor number are somebody else's now."""
    with closing(SharedMemory()) as transport:
        receipt = transport.publish(1, weights(1).items())
        (tmp_path / "other").write_bytes(b"x" * 100)
        with (tmp_path / "other").open("rb") as other:
            stale = attrs.evolve(receipt, location={**receipt.location, "fd": other.fileno()})
            with pytest.raises(RunError, match="gone"):
                copied(transport, stale)


def test_shm_has_no_name() -> None:
    """An anonymous memory file: not in /dev/shm, and the kernel frees it with its last user."""
    with closing(SharedMemory()) as transport:
        transport.open("run-7")
        receipt = transport.publish(1, weights(1).items())
        link = f"/proc/self/fd/{receipt.location['fd']}"
        assert os.readlink(link) == "/memfd:forge-host run-7 (deleted)"
        assert os.stat(link).st_nlink == 0 and stat.S_ISREG(os.stat(link).st_mode)


# --- file -------------------------------------------------------------------------------------------------------------


def test_file_keeps_two_and_removes_them(tmp_path: Path) -> None:
    with closing(Files(directory=str(tmp_path))) as transport:
        transport.open("run")
        for version in (1, 2, 3):
            transport.publish(version, weights(version).items())
        assert sorted(p.name for p in (tmp_path / "run").glob("*")) == [
            OWNER,
            "v00000002.safetensors",
            "v00000003.safetensors",
        ]
    assert list(tmp_path.iterdir()) == []


def test_file_removes_what_dead_runs_left(tmp_path: Path) -> None:
    dead, alive, foreign = tmp_path / "dead", tmp_path / "alive", tmp_path / "foreign"
    host = os.uname().nodename
    for folder, owner in ((dead, (host, 2**22 + 1)), (alive, (host, os.getppid())), (foreign, ("elsewhere", 1))):
        folder.mkdir()
        (folder / OWNER).write_text(f'{{"host": "{owner[0]}", "pid": {owner[1]}}}')
        (folder / "v00000001.safetensors").write_bytes(b"")
    with closing(Files(directory=str(tmp_path))) as transport:
        transport.open("run")
        transport.publish(1, weights(1).items())
        assert sorted(p.name for p in tmp_path.iterdir()) == ["alive", "foreign", "run"]


def test_file_tells_a_bad_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(RunError, match=r"plain/weights: version 1 of the weights \(0 MB\) cannot be written"):
        Files(directory=str(tmp_path / "plain")).publish(1, weights(1).items())


def test_file_tells_damage(tmp_path: Path) -> None:
    with closing(Files(directory=str(tmp_path))) as transport:
        receipt = transport.publish(1, weights(1).items())
        path = Path(receipt.location["path"])
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(RunError, match=r"v00000001\.safetensors: version 1 of the weights cannot be read"):
            transport.fetch(receipt)


# --- auto -------------------------------------------------------------------------------------------------------------


def plan(use: str) -> Any:
    return SimpleNamespace(transport=SimpleNamespace(use=Use(use)), config=SimpleNamespace(run_dir="runs"))


def on(**hosts: tuple[int, ...]) -> dict[str, Place]:
    return {role: Place(role, "cpu", tuple(Spot((host,)) for host in ids)) for role, ids in hosts.items()}


def test_auto_takes_shared_memory_on_one_host() -> None:
    use, reason = choose_transport(plan("auto"), on(trainer=(0,), generator=(0,), reward=(1,)))
    assert use == Use("builtin/shm") and "memory" in reason


def gpus(trainer: Any, generator: Any) -> dict[str, Place]:
    given = {"trainer": trainer, "generator": generator}
    return {
        role: Place(role, "cuda" if ids else "cpu", tuple(Spot((0,), (replica,)) for replica in ids) or (Spot((0,)),))
        for role, ids in given.items()
    }


@pytest.mark.parametrize(
    ("places", "best", "word"),
    [
        (gpus(((0,),), ((0,),)), "cuda-ipc", "one GPU"),
        (gpus(((0, 1),), ((0,), (0,))), "cuda-ipc", "one GPU"),
        (gpus(((0,),), ((1, 2), (3, 4))), "nccl", "of their own"),
        (gpus(((0, 1),), ((1,),)), "nccl", "of their own"),  # rank 0 publishes
        (gpus(((0, 1),), ((0, 1),)), None, "share only some"),
        (gpus(((0,),), ()), None, "on the CPU"),
    ],
)
def test_auto_goes_by_the_gpus(places: Any, best: str | None, word: str) -> None:
    use, reason = choose_transport(plan("auto"), places, {"cuda-ipc", "nccl", "builtin"})
    assert use == Use(f"{best}/{best}" if best else "builtin/shm") and word in reason
    use, reason = choose_transport(plan("auto"), places, {"builtin"})
    assert use == Use("builtin/shm") and (f"forge-plugin-{best}" in reason) == bool(best)
    for asked in ("cuda-ipc", "nccl/nccl"):
        if best and best in asked:
            assert choose_transport(plan(asked), places)[0] == Use(asked)
        else:
            with pytest.raises(UsageError, match=word):
                choose_transport(plan(asked), places)


def test_auto_takes_files_between_hosts() -> None:
    use, reason = choose_transport(plan("auto"), on(trainer=(0,), generator=(0, 1)))
    assert use == Use("builtin/file", {"directory": str(Path("runs/sync").absolute())})
    assert "trainer is on host 0 and generator is on host 0, 1" in reason
    assert choose_transport(plan("auto"), on(trainer=(0,), generator=(1,)))[0].ref == "builtin/file"


def test_what_is_configured_stays() -> None:
    assert choose_transport(plan("my/own"), on(trainer=(0,), generator=(1,)))[0] == Use("my/own")


def test_shm_between_hosts_is_refused() -> None:
    with pytest.raises(UsageError, match="shm stays within one host, but trainer is on host 0 and gen"):
        choose_transport(plan("shm"), on(trainer=(0,), generator=(1,)))
