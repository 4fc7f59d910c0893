"""The sandbox without bubblewrap: own namespaces, an empty root, the Python runtime bound read-only, nothing else.

    enter({"binds": [["/usr/lib", "/usr/lib"]], "links": [["usr/lib", "/lib"]], "tmp_bytes": 16777216})

Same picture as the bubblewrap command of `forge_plugin_code.isolation`. Needs user namespaces and mount_setattr
(Linux 5.12). `fresh` gives one verdict its own pid, mount, ipc and uts namespaces inside the sandbox.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

from .seccomp import check, kernel

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
FRESH = NEWNS | NEWUTS | NEWIPC | NEWPID  # not NEWNET: the slowest, and nothing can stay in a network without a process
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH, AT_RECURSIVE = 2, 0x8000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
PR_SET_PDEATHSIG = 1
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
USER = 1000  # the id that tested code sees as its own


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def enter(spec: dict[str, Any]) -> None:
    """Returns in a new process, pid 1 of new namespaces; the calling process waits for it and exits with its status.

    OSError naming the kernel call when the system does not allow it.
    """
    libc, uid, gid = kernel(), os.getuid(), os.getgid()
    check(libc.unshare(NEWUSER | NEWNET | FRESH), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{USER} {uid} 1"), ("gid_map", f"{USER} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    pid = os.fork()
    if pid:
        os.close(0)  # the socket's end is then seen when the inner process ends
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    check(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    mount(libc, None, "/", None, MS_REC | MS_PRIVATE)
    # The new root is a tmpfs over /tmp; pivoting leaves the old root at /old, with whatever the real /tmp holds.
    mount(libc, "tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    os.mkdir("/tmp/old")
    check(libc.pivot_root(b"/tmp", b"/tmp/old"), "pivot_root")
    for source, target in spec["binds"]:
        _bind(libc, source, target, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
    for device in DEVICES:
        _bind(libc, device, device, ATTR_NOSUID)
    for source, target in spec["links"]:
        os.symlink(source, target)
    os.mkdir("/tmp")
    fresh_tmp(libc, spec["tmp_bytes"])
    check(libc.umount2(b"/old", MNT_DETACH), "umount /old")
    os.rmdir("/old")
    mount(libc, None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/tmp")


def fresh(libc: ctypes.CDLL) -> bool:
    """Gives this process's next child fresh namespaces; False when the system does not allow it here."""
    return int(libc.unshare(FRESH)) == 0


def fresh_tmp(libc: ctypes.CDLL, size: int) -> None:
    """An empty /tmp of `size` bytes, the only place that can be written to."""
    mount(libc, "tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=700,size={size},nr_inodes=1024")
    os.chdir("/tmp")


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Gives up every capability, for good."""
    check(libc.prctl(47, 4, 0, 0, 0), "prctl(PR_CAP_AMBIENT_CLEAR_ALL)")
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    check(libc.capset(header, data), "capset")
    check(libc.prctl(38, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def mount(libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    check(libc.mount(*texts, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _bind(libc: ctypes.CDLL, source: str, target: str, attributes: int) -> None:
    old = f"/old{source}"
    if os.path.isdir(old):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(libc, old, target, None, MS_BIND | MS_REC)
    wanted = _MountAttr(set=attributes)
    done = libc.syscall(SYS_MOUNT_SETATTR, -1, target.encode(), AT_RECURSIVE, ctypes.byref(wanted), ctypes.c_size_t(32))
    check(done, f"mount_setattr {target}")
