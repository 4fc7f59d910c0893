"""A seccomp filter for tested code: no new processes, no programs, no sockets, nothing that reaches the kernel's edges.

    libc = kernel()
    install(libc, build_filter(os.uname().machine))

Why a deny list: an allow list breaks with every new C library, and namespaces already hide files, processes and
network. What is denied gives EPERM, so a program sees PermissionError. One filter for a machine type, about 130
instructions:
    wrong architecture: kill; x32 call numbers: EPERM; clone without CLONE_THREAD: EPERM (threads stay possible);
    clone3: ENOSYS (its flags lie in memory that a filter cannot read; the C library then uses clone);
    prlimit64 on another process: EPERM; each of DENIED: EPERM; everything else: allowed.
Numbers: Linux arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import os
import struct

# name: (x86_64, aarch64); None where the call does not exist
DENIED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "personality": (135, 92), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447), "quotactl": (179, 60),
    "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "sethostname": (170, 161), "setdomainname": (171, 162), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
}  # fmt: skip
CLONE, CLONE3, PRLIMIT64 = (56, 220), (435, 435), (302, 261)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF operation codes
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_CLONE_THREAD = 0x00010000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def kernel() -> ctypes.CDLL:
    """The C library, for calls that Python has no function for."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """OSError with the call's name if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def build_filter(machine: str) -> bytes | None:
    """The filter's instructions (struct sock_filter, 8 bytes each); None for a machine type without a table."""
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]

    def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    lines = [op(_LOAD, _ARCHITECTURE), op(_EQUAL, architecture, 1, 0), op(_RETURN, _KILL), op(_LOAD, _NUMBER)]
    if machine == "x86_64":
        lines += [op(_AT_LEAST, _X32, 0, 1), op(_RETURN, _EPERM)]
    # clone: skip four unless it is the call; then look at the lower half of its flags (little endian)
    lines += [op(_EQUAL, CLONE[column], 0, 4), op(_LOAD, _FIRST_ARGUMENT), op(_ANY_BIT, _CLONE_THREAD, 0, 1)]
    lines += [op(_RETURN, _ALLOW), op(_RETURN, _EPERM)]
    lines += [op(_EQUAL, PRLIMIT64[column], 0, 4), op(_LOAD, _FIRST_ARGUMENT), op(_EQUAL, 0, 0, 1)]
    lines += [op(_RETURN, _ALLOW), op(_RETURN, _EPERM)]
    lines += [op(_EQUAL, CLONE3[column], 0, 1), op(_RETURN, _ENOSYS)]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            lines += [op(_EQUAL, number, 0, 1), op(_RETURN, _EPERM)]
    return b"".join([*lines, op(_RETURN, _ALLOW)])


def install(libc: ctypes.CDLL, instructions: bytes) -> None:
    """Puts the calling process, and whatever it starts, under the filter for good."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    program = _Program(len(instructions) // 8, instructions)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "prctl(PR_SET_SECCOMP)")
