"""How a sandbox is started: by bubblewrap, by our own namespaces, or (only when allowed) with neither.

    command = start_command(choose("auto"), Settings())      # ["bwrap", "--unshare-all", ...]

Both kinds show tested code the same machine: the C libraries and Python's standard library read-only, four devices, an
empty /tmp of limited size, an empty network, no /proc, no /etc, no home, no environment.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

import attrs

from forge_host.api import PluginError, UsageError
from forge_plugin_code.inside.namespaces import DEVICES, USER

MODES = ("bwrap", "namespaces", "none")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "HOME": "/tmp", "PATH": ""}
TMP_BYTES = 16 * 1024**2
_HERE = Path(__file__).resolve().parent
_START = "import sys; sys.path.insert(0, {!r}); from inside.sandbox import main; main()"
_REMEDY = (
    "install bubblewrap (apt-get install bubblewrap) or allow user namespaces "
    "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a container also its seccomp "
    "profile); `allow_unsafe: true` runs the code without isolation, on a machine you can afford to lose"
)


@attrs.frozen(kw_only=True)
class Settings:
    """What a sandbox is made of, apart from one job's limits."""

    isolation: str = "auto"
    allow_unsafe: bool = False
    packages: tuple[str, ...] = ()


def start_command(mode: str, settings: Settings) -> list[str]:
    """The command of one sandbox; it talks on its standard input, a Unix socket."""
    binds, links = _runtime(settings.packages)
    python = str(Path(sys.executable).resolve())
    inside = mode == "bwrap"
    code = "/forge" if inside else str(_HERE)
    path = [_place(n) if mode != "none" else folder for n, folder in enumerate(settings.packages)]
    spec = json.dumps({"binds": binds, "links": links, "tmp_bytes": TMP_BYTES, "code": code, "path": path})
    run = [python, "-s", "-S", "-P", "-B", "-c", _START.format(code), mode, spec]
    if not inside:
        return run
    command = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"]
    command += ["--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox"]
    # Within its own user namespace only: the keeper needs it to give every verdict namespaces of its own.
    command += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    for source, target in [*binds, [str(_HERE / "inside"), "/forge/inside"]]:
        command += ["--ro-bind", source, target]
    for source, target in links:
        command += ["--symlink", source, target]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--"]
    return command + run


def choose(settings: Settings) -> str:
    """The first mode that works here, found by starting one sandbox; remembered.

    Raises:
        PluginError: none works, naming what was tried and the remedy.
    """
    return _choose(settings.isolation, settings.allow_unsafe)


@lru_cache
def _choose(isolation: str, allow_unsafe: bool) -> str:
    from forge_plugin_code.pool import Sandbox, SandboxError

    reasons = ["isolation: none was asked for"] if isolation == "none" else []
    for mode in {"auto": ("bwrap", "namespaces"), "none": ()}.get(isolation, (isolation,)):
        if mode == "bwrap" and shutil.which("bwrap") is None:
            reasons.append("bwrap: not installed")
            continue
        try:
            sandbox = Sandbox(mode, Settings())
            try:
                sandbox.wait_ready(30.0)
            finally:
                sandbox.close()
        except SandboxError as error:
            reasons.append(f"{mode}: {error}")
        else:
            return mode
    if allow_unsafe:
        return "none"
    raise PluginError(
        f"tested code cannot be isolated on this machine ({'; '.join(reasons)})", where="reward `code`", fix=_REMEDY
    )


@lru_cache
def _runtime(packages: tuple[str, ...]) -> tuple[list[list[str]], list[list[str]]]:
    """Read-only folders and files [[source, target]] and symbolic links [[content, place]]."""
    binds, links = [], []
    for name in ("usr/lib", "usr/lib64", "lib", "lib64"):
        path = f"/{name}"
        if os.path.islink(path):
            links.append([os.readlink(path), path])
        elif os.path.isdir(path):
            binds.append([path, path])
    python = str(Path(sys.executable).resolve())
    standard = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    wanted = [python, standard]
    library = sysconfig.get_config_var("INSTSONAME")
    if library and (shared := Path(sys.base_prefix, "lib", library)).exists():
        wanted.append(str(shared))
    for path in wanted:
        if not any(path == there or path.startswith(f"{there}/") for there, _ in binds):
            binds.append([path, path])
    for number, folder in enumerate(packages):
        if not os.path.isdir(folder):
            raise UsageError(f"`packages` of the reward `code` names {folder}, which is no folder")
        binds.append([os.path.realpath(folder), _place(number)])
    return binds, links


def _place(number: int) -> str:
    """Where the sandbox sees a folder of `packages`: not at its own path, which may be below /tmp."""
    return f"/packages/{number}"
