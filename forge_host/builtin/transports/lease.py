"""Who reads a version: a memory file that a publisher and its readers lock, for transports within one host.

    held = LeasedFile("run-1")
    held.lock(); held.seal()                      # the version is whole now
    with take_lease(receipt):                     # in the reader; receipt.location has held.location()
        ...

A reader holds a shared flock while it reads, which the kernel ends with the process; the publisher writes again only
with the exclusive flock. The file's first bytes are a random token of the version, so that a reader that comes late
learns that its version is gone. The file has no name: nothing is left behind, not even after kill -9.
"""

from __future__ import annotations

import fcntl
import io
import os
import secrets
from functools import cache
from pathlib import Path
from typing import Any

from forge_host.api import Receipt
from forge_host.errors import RunError

TOKEN_BYTES = 16


class LeasedFile:
    """A publisher's file; readers open it as /proc/<pid>/fd/<n>."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"forge-host {name}"[:200], os.MFD_CLOEXEC)
        self.token = b""

    def lock(self) -> bool:
        """Take the exclusive lock; False while a reader has a lease."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unseal(self) -> None:
        """No version is in it any more."""
        self._set(bytes(TOKEN_BYTES))

    def seal(self) -> None:
        """A new version is whole; readers may come."""
        self._set(secrets.token_bytes(TOKEN_BYTES))
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def location(self) -> dict[str, Any]:
        """What `take_lease` needs of a receipt's location."""
        return {"boot": boot_id(), "pid": os.getpid(), "fd": self.fd, "token": self.token}

    def close(self) -> None:
        os.close(self.fd)

    def _set(self, token: bytes) -> None:
        self.token = token
        os.pwrite(self.fd, token, 0)


def take_lease(receipt: Receipt) -> io.FileIO:
    """The locked file of the receipt's version; closing it ends the lease.

    Raises:
        RunError: the version is gone, its publisher is, or it is on another host.
    """
    where, location = f"version {receipt.version} of the weights", receipt.location
    if location["boot"] != boot_id():
        raise RunError(f"{where} is in another host's memory", fix="set transport: file, or one that crosses hosts")
    path = f"/proc/{location['pid']}/fd/{location['fd']}"
    try:
        lease = io.FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "r")
    except PermissionError as error:
        raise RunError(
            f"{where} cannot be read: no permission for {path}",
            fix="run trainer and generator as one user, or set transport: file",
        ) from error
    except OSError as error:
        raise gone(receipt, "its publisher has closed it or died") from error
    try:
        fcntl.flock(lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.pread(lease.fileno(), TOKEN_BYTES, 0) != location["token"]:
            raise gone(receipt, "a newer one has taken its memory")
    except BlockingIOError as error:
        lease.close()
        raise gone(receipt, "its memory is being used for a newer one") from error
    except BaseException:
        lease.close()
        raise
    return lease


@cache
def boot_id() -> str:
    """Tells hosts apart, and a host from itself before a restart."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def gone(receipt: Receipt, why: str) -> RunError:
    return RunError(
        f"version {receipt.version} of the weights is gone: {why}",
        fix="fetch the newest version; only two are kept",
    )
