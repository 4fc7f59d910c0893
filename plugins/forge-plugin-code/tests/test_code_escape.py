"""Programs that try to get out, or to pass without being right. Each prints "contained" only if the attempt failed."""

from __future__ import annotations

import os
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest
from forge_plugin_code.reward import CodeReward

from forge_host.api import RewardResult


def grade(isolation: str, program: str, metadata: dict[str, object] | None = None, **config: object) -> RewardResult:
    reward = CodeReward(isolation=isolation, **{"timeout_s": 8.0, "total_s": 30.0, "workers": 1, **config})
    response = f"```python\n{textwrap.dedent(program)}\n```"
    result = reward(response=response, metadata=metadata or {"inputs": [""], "outputs": ["contained"]})
    assert result is not None
    return result


def assert_works(isolation: str) -> None:
    """The pool grades an honest program as before."""
    assert grade(isolation, "print('contained')").value == 1.0


ATTEMPTS = {
    "fork": """
        import os
        try:
            while True: os.fork()
        except PermissionError: print("contained")
        """,
    "subprocess": """
        import subprocess, sys
        try: subprocess.run([sys.executable, "-c", "print('ran')"])
        except OSError: print("contained")
        """,
    "exec": """
        import os, sys
        try: os.execv(sys.executable, [sys.executable, "-c", "print('ran')"])
        except OSError: print("contained")
        """,
    "thread bomb": """
        import threading, time
        try:
            for _ in range(5000): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        except RuntimeError: print("contained", flush=True)
        import os; os._exit(0)
        """,
    "10 GB at once": """
        try: block = bytearray(10 << 30)
        except MemoryError: print("contained")
        """,
    "10 GB bit by bit": """
        blocks = []
        try:
            for _ in range(10240): blocks.append(bytearray(1 << 20))
        except MemoryError:
            blocks.clear(); print("contained")
        """,
    "memory outside the address space": """
        import os
        try: os.memfd_create("x")
        except PermissionError: print("contained")
        """,
    "fill the disk": """
        try:
            for i in range(100):
                with open(f"/tmp/{i}", "wb") as file: file.write(bytes(10 << 20))
        except OSError: print("contained")
        """,
    "many files": """
        try:
            for i in range(100_000): open(f"/tmp/{i}", "w").close()
        except OSError: print("contained")
        """,
    "write outside": """
        import os
        bad = []
        for path in ("/x", "/usr/lib/x", "/forge/x", "/forge/inside/sandbox.py", "/dev/x", os.__file__):
            try: open(path, "w"); bad.append(path)
            except OSError: pass
        print(bad or "contained")
        """,
    "kill the parents": """
        import os, signal
        for pid in (os.getppid(), 1, -1):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
                try: os.kill(pid, number)
                except OSError: pass
        print("contained")
        """,
    "trace, mount, unshare, keys, rings": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        calls = [libc.ptrace(16, 1, 0, 0), libc.unshare(0x10000000), libc.unshare(0x20000)]
        calls += [libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None), libc.umount2(b"/tmp", 2), libc.chroot(b"/tmp")]
        calls += [libc.syscall(425, 1, 0), libc.syscall(435, 0, 0), libc.shmget(0, 4096, 0o1600)]
        print("contained" if set(calls) == {-1} else calls)
        """,
    "raise a limit": """
        import resource
        try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        except (ValueError, OSError): print("contained")
        """,
    "limit another process": """
        import resource
        try: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))
        except PermissionError: print("contained")
        """,
    "capabilities and identity": """
        import os
        bad = [] if os.getuid() == 1000 else [os.getuid()]
        for attempt in (os.setuid, os.setgid, lambda user: os.chown("/tmp", user, user), lambda _: os.nice(-5)):
            try: attempt(0); bad.append(attempt)
            except OSError: pass
        print(bad or "contained")
        """,
    "left-over descriptors": """
        import os, stat
        found = []
        for fd in range(3, 1024):
            try: found.append(oct(os.fstat(fd).st_mode))
            except OSError: pass
        print(found or "contained")
        """,
}  # fmt: skip


@pytest.mark.parametrize("name", ATTEMPTS)
def test_attempt_is_contained(isolation: str, name: str) -> None:
    processes = len([entry for entry in os.listdir("/proc") if entry.isdigit()])
    result = grade(isolation, ATTEMPTS[name])
    assert result.value == 1.0, result.note
    assert len([entry for entry in os.listdir("/proc") if entry.isdigit()]) < processes + 40
    assert_works(isolation)


def test_host_files_are_not_there(isolation: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    paths = [
        str(secret),
        "/etc/passwd",
        "/etc/hostname",
        __file__,
        str(Path.home()),
        "/proc/self/environ",
        "/proc/1/mem",
    ]
    paths += ["/sys", "/dev/shm", "/var", "/run", "/old", "/home", os.getcwd()]
    runtime = Path(sys.executable).resolve().parts  # its path leads through folders that hold nothing else
    program = f"""
        import os
        found = []
        for path in {paths!r}:
            try:
                found += set(os.listdir(path)) - set({runtime!r}) if os.path.isdir(path) else [open(path).read()]
            except OSError: pass
        print(found or "contained")
        """
    result = grade(isolation, program)
    assert result.value == 1.0, result.note
    assert secret.read_text() == "the secret"


def test_host_folder_cannot_be_written(isolation: str, tmp_path: Path) -> None:
    grade(isolation, f"import os; os.makedirs({str(tmp_path)!r}, exist_ok=True); open('{tmp_path}/x', 'w').write('x')")
    assert list(tmp_path.iterdir()) == []


def test_environment_is_clean(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    program = "import os; print('contained' if 'hf_secret' not in str(dict(os.environb)) else 'leak')"
    assert grade(isolation, program).value == 1.0


def test_no_connection_reaches_the_host(isolation: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        program = f"""
            import socket, ctypes
            opened = []
            for attempt in (
                lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2),
                lambda: socket.create_connection(("1.1.1.1", 80), timeout=2),
                lambda: socket.socket(socket.AF_UNIX),
                lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {port})),
                lambda: socket.getaddrinfo("example.org", 80),
            ):
                try: attempt(); opened.append(attempt)
                except OSError: pass
            print(opened or "contained")
            """
        result = grade(isolation, program)
        assert result.value == 1.0, result.note
        with pytest.raises(TimeoutError):
            server.accept()


def test_without_its_filter_the_network_is_still_empty(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces hold by themselves: the tests' process may use no socket either, so ask the keeper's namespace."""
    from forge_plugin_code.isolation import Settings
    from forge_plugin_code.pool import Sandbox

    sandbox = Sandbox(isolation, Settings())
    try:
        sandbox.wait_ready()
        host = os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/pid"), os.readlink("/proc/self/ns/mnt")
        children = Path(f"/proc/{sandbox._process.pid}/task/{sandbox._process.pid}/children").read_text().split()
        inner = children[0] if children else str(sandbox._process.pid)
        kinds = ("net", "pid", "mnt", "user", "ipc", "uts")
        seen = {kind: os.readlink(f"/proc/{inner}/ns/{kind}") for kind in kinds}
        assert not set(seen.values()) & {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}, (seen, host)
        assert sandbox.pid == 1
    finally:
        sandbox.close()


ENDLESS = {
    "sleeps": ("import time; time.sleep(10**6)", "out of time"),
    "spins": ("while True: pass", "out of time"),
    "ignores signals": (
        """
        import signal
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
        while True:
            try: signal.pause()
            except BaseException: pass
        """,
        "out of time",
    ),
    "stops itself": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "out of time"),
    "kills itself without a name": ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    "leaves its session": ("import os\ntry: os.setsid()\nexcept OSError: pass\nwhile True: pass", "out of time"),
    "a thread stays": (
        "import threading, time; threading.Thread(target=time.sleep, args=(10**6,)).start(); print('contained')",
        "out of time",
    ),
    "prints for ever": ("while True: print('x' * 1000)", "printed too much"),
    "complains for ever": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "printed too much"),
    "recurses deeply": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(x): return [f(x)]\nmax([1, 2], key=f)",
        "",
    ),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "leaves early": ("import sys; sys.exit(0)", "printed ''"),
    "leaves at once": ("import os; os._exit(0)", "printed ''"),
    "raises": ("1 / 0", "ZeroDivisionError"),
    "is no Python": ("def", "SyntaxError"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_is_ended_and_gets_0(isolation: str, name: str) -> None:
    program, why = ENDLESS[name]
    start = time.monotonic()
    result = grade(
        isolation, program, timeout_s=2.0 if name == "recurses deeply" else 1.0 if why == "out of time" else 8.0
    )
    assert result.value == 0.0
    assert why in result.note, result.note
    assert time.monotonic() - start < 20.0
    assert_works(isolation)


def test_nothing_stays_for_the_next_program(isolation: str) -> None:
    grade(isolation, "open('/tmp/left', 'w').write('x'); import builtins; builtins.left = 1")
    for _ in range(3):  # whichever sandbox comes next
        program = (
            "import os, builtins; print('contained' if not os.listdir('/tmp') and not hasattr(builtins, 'left') else 1)"
        )
        assert grade(isolation, program).value == 1.0


# --- passing without being right ------------------------------------------------------------------------------------

SECRET = 918273645546372819
TESTS = {"tests": [f"assert f(3) == {SECRET}", f"assert abs(f(4) - {SECRET}.5) < 1e-6", "assert f(5) is True"]}
CHEATS = {
    "equal to everything": """
        class Any(int):
            def __eq__(self, other): return True
            def __sub__(self, other): return 0
            def __hash__(self): return 0
        def f(x): return Any()
        """,
    "an object that agrees": """
        class Any:
            def __eq__(self, other): return True
            def __sub__(self, other): return 0.0
            def __abs__(self): return 0.0
            def __lt__(self, other): return True
            def __bool__(self): return True
        def f(x): return Any()
        """,
    "patched built-ins": """
        import builtins
        for name in ("abs", "bool", "isinstance", "any", "all", "len"): setattr(builtins, name, lambda *a: 0)
        abs = lambda x: 0
        AssertionError = type("A", (BaseException,), {})
        builtins.AssertionError = ZeroDivisionError
        def f(x): return 0
        """,
    "looks for the answer": """
        import gc, sys
        def f(x):
            frame = sys._getframe()
            while frame:
                for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
                    if "918273645546372819" in repr(value)[:100000] and frame.f_back: return 918273645546372819 // 1
                frame = frame.f_back
            for thing in gc.get_objects():
                if isinstance(thing, (str, bytes, list, dict, tuple)) and thing is not None:
                    text = str(thing)[:10000]
                    at = text.find("assert f(3) == ")
                    if at >= 0: return int(text[at + 15:].split()[0].strip(",'"))
            return 0
        """.replace("918273645546372819 // 1", "int('9182' + '73645546372819')").replace(
        '"918273645546372819" in', '("9182" + "73645546372819") in'
    ),
    "reads the messages": """
        import os, sys, threading, socket
        from inside import wire
        original = wire.receive
        seen = []
        def receive(sock, *rest):
            message = original(sock, *rest); seen.append(message); return message
        wire.receive = receive
        def f(x):
            import re
            numbers = re.findall(r"\\d{10,}", repr(seen))
            return int(numbers[0]) if numbers else 0
        """,
    "says that all passed": """
        import os
        for fd in range(64):
            for line in (b'{"failure": ""}\\n' * 3, b'\\x00\\x00\\x00\\x02{}'):
                try: os.write(fd, line)
                except OSError: pass
        def f(x):
            print('{"failure": ""}' * 3); os._exit(0)
        """,
    "exits": "import sys\ndef f(x): sys.exit(0)",
    "blames the tests": "def f(x): raise ModuleNotFoundError('numpy', name='numpy')",
    "blames the tests by name": """
        class NotGradable(BaseException): pass
        def f(x): raise NotGradable()
        """,
    "replaces the tests": "import sys; sys.modules['solution'] = sys\ndef f(x): return None\ndef check(c): return None",
    "deep answer": "def f(x):\n    a = []\n    for _ in range(100000): a = [a]\n    return a",
    "huge answer": "def f(x): return 'x' * (100 << 20)",
    "sends nonsense": """
        from inside import wire
        wire.encode = lambda *a: {"h": ["object", {}, [], 3, 4]}
        def f(x): return object()
        """,
    "asks for more than it may": """
        from inside import candidate
        def f(x):
            import gc
            me = next(o for o in gc.get_objects() if isinstance(o, candidate.Candidate))
            for n in (0, -1, 10**9):
                try: me.peer.ask("call", n, [], {})
                except Exception: pass
            for kind in ("getattr", "global", "start"):
                try: return me.peer.ask(kind, 0, "__globals__", {})
                except Exception: pass
        """,
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_no_assert_passes_without_the_answer(isolation: str, name: str) -> None:
    result = grade(isolation, CHEATS[name], dict(TESTS), partial_credit=True)
    assert (result.value, result.parts["passed"]) == (0.0, 0.0), result
    assert_works(isolation)


def test_the_answer_itself_passes(isolation: str) -> None:
    """The tests above can be passed."""
    program = f"def f(x): return {{3: {SECRET}, 4: {SECRET}.5, 5: True}}[x]"
    assert grade(isolation, program, dict(TESTS)).value == 1.0


def test_printed_verdicts_count_for_nothing(isolation: str) -> None:
    program = """
        import os
        print('{"event": "ran", "why": "", "status": 0, "output": "42"}')
        for fd in range(3, 64):
            try: os.write(fd, b'x')
            except OSError: pass
        """
    assert grade(isolation, program, {"inputs": ["1"], "outputs": ["42"]}).value == 0.0
