"""A running actor: `await handle.method.call_one(...)`, with a deadline and an error that names who failed.

Every wait on a remote process goes through `Call`, so a hang, a death and a remote exception each become one
sentence that says the role, the call and the seconds waited.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch.actor import ActorError, ProcMesh

from forge_host.errors import ForgeError, RunError
from forge_host.runtime.hosts import identity
from forge_host.runtime.process import last_lines, log_path

if TYPE_CHECKING:
    from forge_host.runtime.actor import ForgeActor

try:  # not exported; the class of the error that reports a dead process
    from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
except ImportError as error:  # pragma: no cover - another Monarch
    raise RunError("this torchmonarch has no SupervisionError", fix="install torchmonarch 0.7") from error


#: How often a wait looks whether a process of this host is gone, and how long Monarch, which knows why it went and says
#: so within 10 s, or 30 when it had not begun to watch the call, has to be first. Seconds.
LOOK_S, GONE_S = 1.0, 12.0
#: Told of every remote call before it is made: (handle, endpoint). What injects failures uses it.
on_call: list[Callable[[ActorHandle, str], None]] = []


class Unanswered(RunError):
    """A remote call that got no answer; `mesh` names the replica ("trainer-0")."""

    mesh: str | None = None


class ActorDied(Unanswered):
    """A remote process is gone; its call will never be answered."""


class DeadlineExceeded(Unanswered):
    """A remote call was not answered in time."""


class ActorHandle:
    """The processes of one replica. Attribute access gives its endpoints as `Call`s.

    Args:
        mesh: name of the process mesh, unique in the run ("generator-0", after a restart "generator-0-r1").
        procs: number of ranks.
        call_timeout: default deadline of one call, seconds.
        memory: the key that limits a process's memory, and its value in MiB.
    """

    def __init__(
        self, mesh: str, actor: ForgeActor, proc_mesh: ProcMesh, procs: int, call_timeout: float, log_dir: str | None,
        memory: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.mesh, self.procs, self.call_timeout, self.log_dir = mesh, procs, call_timeout, log_dir
        self.memory = memory
        self.dead: str | None = None
        self.closed = False
        self.ranks: list[tuple[str, int]] = []  #: host and pid of every rank, once they are up
        self._machines: list[str] = []  # of every rank, as `identity` tells them apart
        self._actor, self._proc_mesh = actor, proc_mesh
        self._looked, self._looks_gone = 0.0, 0

    def __getattr__(self, name: str) -> Call:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            endpoint = getattr(self._actor, name)
        except AttributeError:
            raise AttributeError(f"{self.mesh} has no endpoint `{name}`") from None
        call = Call(self, name, endpoint)
        self.__dict__[name] = call
        return call

    @property
    def pids(self) -> list[int]:
        """Processes on this host; another host's numbers mean nothing here."""
        here = identity()
        return [pid for machine, (_, pid) in zip(self._machines, self.ranks, strict=True) if machine == here]

    def gone(self) -> bool:
        """Whether one of the processes here has been gone for GONE_S; looks at most every LOOK_S.

        Looks are counted, as a clock would also count the time in which this process and Monarch were suspended.
        """
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._looks_gone = self._looks_gone + 1 if any(_state(pid) == "ended" for pid in self.pids) else 0
        return self._looks_gone * LOOK_S > GONE_S

    async def start(self, timeout_s: float, key: str) -> None:
        """Wait until every process is there and `setup` is done, `timeout_s` seconds in all; `key` set that number.

        Raises:
            DeadlineExceeded: it took longer; the processes are stopped.
            ForgeError: the actor's own.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        call = "starting"
        try:
            found = await self.health.call(timeout_s=timeout_s)
            self.ranks = [(process["host"], process["pid"]) for process in found]
            self._machines = [process["machine"] for process in found]
            call = "`setup`"
            await self.setup.call(timeout_s=max(end - loop.time(), 0.01))
        except ValueError as error:  # Monarch's word for a process that cannot be started
            raise RunError(f"{self.mesh} cannot be started: {' '.join(str(error).split())[:400]}") from error
        except DeadlineExceeded:
            late = DeadlineExceeded(
                f"{self.mesh} was not ready within {timeout_s:g} s (still in {call}; {self.where()})"
                f"{self.last_lines()}",
                fix=f"raise {key}, or see {log_path(self.log_dir or '.', self.mesh, 0)}",
            )
            late.mesh = self.mesh
            raise late from None

    async def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop the processes; those that outlive the deadline on this host are killed, and at once if one is dead."""
        if self.closed:
            return
        self.closed = True
        if self.dead is not None:
            self.kill()
            timeout_s = min(timeout_s, 2.0)
        try:
            await asyncio.wait_for(_plain(self._proc_mesh.stop()), timeout_s)
        except Exception as error:  # a dead mesh cannot be stopped; what counts is below
            self.dead = self.dead or f"stop failed: {error}"
        await asyncio.get_running_loop().run_in_executor(None, _reap, self.pids)

    def kill(self) -> None:
        """SIGKILL to every process that is still there."""
        _reap(self.pids)

    def where(self, rank: int | None = None) -> str:
        """`rank 1 on host-a, pid 71, stopped`: the rank, else those that look stuck, else all; with its state."""
        states = [_state(pid) if pid in self.pids else "" for _, pid in self.ranks]
        stuck = [i for i, state in enumerate(states) if state not in ("", "running", "sleeping")]
        chosen = [rank] if rank is not None and rank < len(self.ranks) else stuck or range(len(self.ranks))
        parts = [
            f"rank {i} on {self.ranks[i][0]}, pid {self.ranks[i][1]}" + (f", {states[i]}" if states[i] else "")
            for i in chosen
        ]
        return "; ".join(parts) or f"{self.procs} rank{'s' * (self.procs > 1)}, still starting"

    def last_lines(self, rank: int = 0) -> str:
        """The end of a rank's log, indented, or an empty string."""
        text = last_lines(log_path(self.log_dir, self.mesh, rank)) if self.log_dir else ""
        return "".join(f"\n    {line}" for line in text.splitlines())


class Call:
    """One endpoint of an actor; `call` gives every rank's answer in rank order, `call_one` the first rank's."""

    __slots__ = ("_endpoint", "_handle", "_name")

    def __init__(self, handle: ActorHandle, name: str, endpoint: Any) -> None:
        self._handle, self._name, self._endpoint = handle, name, endpoint

    async def call(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> list[Any]:
        for tell in on_call:
            tell(self._handle, self._name)
        mesh = await self._wait(self._endpoint.call(*args, **kwargs), timeout_s)
        return list(mesh.values())

    async def call_one(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        if self._handle.procs > 1:
            return (await self.call(*args, timeout_s=timeout_s, **kwargs))[0]
        for tell in on_call:
            tell(self._handle, self._name)
        return await self._wait(self._endpoint.call_one(*args, **kwargs), timeout_s)

    async def _wait(self, future: Any, timeout_s: float | None) -> Any:
        handle, seconds = self._handle, timeout_s or self._handle.call_timeout
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds) as limit:
                watch = _Watch(handle, limit)
                try:
                    return await future
                finally:
                    watch.timer.cancel()
        except TimeoutError:
            if any(_state(pid) == "ended" for pid in handle.pids):  # Monarch had not noticed yet
                raise self._died("ended", began, handle.last_lines()) from None
            late = DeadlineExceeded(
                f"{handle.mesh} did not answer `{self._name}` within {seconds:g} s ({handle.where()})",
                fix=f"see {log_path(handle.log_dir or '.', handle.mesh, 0)}",
            )
            late.mesh = handle.mesh
            raise late from None
        except SupervisionError as error:
            rank = _crashed_rank(str(error), handle.mesh)
            raise self._died(reason_of(str(error)), began, handle.last_lines(rank or 0), rank) from error
        except ValueError as error:
            if "spawning proc mesh" not in str(error):
                raise
            raise self._died(f"its processes could not be started: {reason_of(str(error))}", began, "") from error
        except ActorError as error:
            cause = error.exception
            if handle.memory is not None and _out_of_memory(cause):
                # What such a process still holds cannot be relied on; its service replaces it.
                died = self._died(f"out of memory: {' '.join(str(cause).split())[:200]}", began, "")
                handle.kill()
                raise died from error
            if isinstance(cause, ForgeError):
                raise cause from error
            raise RunError(
                f"{handle.mesh}: `{self._name}` failed: {type(cause).__name__}: {cause}{handle.last_lines()}"
            ) from error

    def _died(self, reason: str, began: float, lines: str, rank: int | None = None) -> ActorDied:
        handle, waited = self._handle, time.monotonic() - began
        handle.dead = handle.dead or reason
        died = ActorDied(
            f"{handle.mesh} died during `{self._name}` ({reason}) after {waited:.1f} s of waiting "
            f"({handle.where(rank)}){lines}",
            fix=self._limit(),
        )
        died.mesh = handle.mesh
        return died


    def _limit(self) -> str | None:
        """What to do when memory may be why it died."""
        if self._handle.memory is None:
            return None
        key, limit = self._handle.memory
        return f"its processes have {limit} MiB each; raise {key}, or set it to null for no limit"


class _Watch:
    """Ends a wait early when the process it waits for is gone."""

    __slots__ = ("_handle", "_limit", "_loop", "timer")

    def __init__(self, handle: ActorHandle, limit: asyncio.Timeout) -> None:
        self._handle, self._limit, self._loop = handle, limit, asyncio.get_running_loop()
        self.timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._limit.expired():
            return
        if self._handle.gone():
            self._limit.reschedule(self._loop.time())
        else:
            self.timer = self._loop.call_later(LOOK_S, self._look)


def _out_of_memory(error: Any) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


async def _plain(future: Any) -> Any:
    return await future


def _crashed_rank(text: str, mesh: str) -> int | None:
    """Monarch names a process `MESH-RANK<uid>`."""
    found = re.search(rf"\b{re.escape(process_name(mesh))}-(\d+)<", text)
    return int(found.group(1)) if found else None


def process_name(mesh: str) -> str:
    """Monarch's name of a mesh."""
    return mesh.replace("-", "_")


_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a disk", "T": "stopped", "t": "traced", "Z": "ended"}


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return _STATES.get(file.read().rpartition(")")[2].split()[0], "")
    except OSError:
        return "ended"


def reason_of(text: str) -> str:
    """Why a process is gone, out of Monarch's report."""
    return text.strip().splitlines()[-1].rpartition("failed: ")[2].strip() or "no reason given"


def _reap(pids: list[int]) -> None:
    """Kill processes of this run, and remove what a killed one cannot.

    Intel's OpenMP, which vLLM has on a CPU, registers its process in /dev/shm, under its pid and its user's number.
    """
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        with suppress(OSError):
            os.unlink(f"/dev/shm/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}")
