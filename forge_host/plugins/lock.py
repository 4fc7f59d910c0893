"""The lock of a run: which code its plugins were, so that another process, host or day can check it has the same.

    lock = host.lock()
    lock.write("runs/x/plugins.lock")
    PluginLock.read("runs/x/plugins.lock").check(host.lock(), "this process")     # or PluginError

Hashes: of the wheel's RECORD for an installed distribution; of the package's own source files for an editable one (and
for one without RECORD); of the file for a one-file plugin or a `file.py:Attr` reference. Versions of torch and monarch
come from metadata; nothing is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import attrs

from forge_host._version import API_VERSION, __version__
from forge_host.errors import PluginError, UsageError
from forge_host.plugins.records import PluginRecord
from forge_host.plugins.structure import structure
from forge_host.plugins.targets import file_sha256


@attrs.frozen(kw_only=True)
class LockedPlugin:
    """One plugin of a lock. `path` is set for one-file plugins only, whose `distribution` and `version` are ""."""

    name: str
    distribution: str
    version: str
    entry_point: str
    sha256: str
    editable: bool = False
    path: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip() if self.distribution else self.path


@attrs.frozen(kw_only=True)
class PluginLock:
    """Versions and hashes of one run's code; `files` maps the paths of `file.py:Attr` references to hashes.

    Python is compared by major and minor version, torch and monarch by public version, since one run may span hosts
    with a CUDA and a CPU build of one torch.
    """

    host: str
    api: str
    python: str
    torch: str | None
    monarch: str | None
    plugins: tuple[LockedPlugin, ...]
    files: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def local_files(self) -> tuple[str, ...]:
        """Paths of the one-file plugins and of the files that references named."""
        return tuple(sorted({*(p.path for p in self.plugins if p.path), *self.files}))

    def write(self, path: str | Path) -> None:
        """Writes JSON with sorted keys, to be compared by eye; `UsageError` when it cannot be written."""
        try:
            Path(path).write_text(self.dumps(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the lock cannot be written: {error.strerror}", where=str(path)) from error

    def dumps(self) -> str:
        return json.dumps(attrs.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: str | Path) -> PluginLock:
        """Raises `UsageError` when the file is missing or not a lock."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the lock cannot be read: {error.strerror}", where=str(path)) from error
        return cls.loads(text, str(path))

    @classmethod
    def loads(cls, text: str, where: str) -> PluginLock:
        """Raises `UsageError` when the text is no lock; `where` is what it was read from."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(
                f"not a plugins.lock: {error}", where=where, fix="write one with `forge-host plugins lock`"
            ) from error
        return structure(cls, data, where)

    def differences(self, other: PluginLock, allow: Iterable[str] = ()) -> list[str]:
        """What `other` (what is here) has differently from this lock, one readable sentence each; empty when equal.

        `allow` names what may differ: forge-host, api, python, torch, monarch, plugin:NAME, file:PATH.
        """
        allowed = set(allow)
        found = [
            f"{what} is {there or 'not installed'}, the lock has {locked or 'none'}"
            for what, locked, there, same in (
                ("forge-host", self.host, other.host, self.host == other.host),
                ("the host API", self.api, other.api, self.api == other.api),
                ("Python", self.python, other.python, _minor(self.python) == _minor(other.python)),
                ("torch", self.torch, other.torch, _public(self.torch) == _public(other.torch)),
                ("monarch", self.monarch, other.monarch, _public(self.monarch) == _public(other.monarch)),
            )
            if not same and what.removeprefix("the host ").lower() not in allowed
        ]
        mine = {plugin.name: plugin for plugin in self.plugins}
        theirs = {plugin.name: plugin for plugin in other.plugins}
        for name in sorted(n for n in mine.keys() | theirs.keys() if f"plugin:{n}" not in allowed):
            found += _plugin_differences(name, mine.get(name), theirs.get(name))
        for path in sorted(p for p in self.files.keys() | other.files.keys() if f"file:{p}" not in allowed):
            if path not in other.files:
                found.append(f"file {path} of the lock is not used here")
            elif path not in self.files:
                found.append(f"file {path} is not in the lock")
            elif self.files[path] != other.files[path]:
                found.append(f"file {path} has changed since the lock was written")
        return found

    def check(self, other: PluginLock, where: str, allow: Iterable[str] = ()) -> None:
        """Raises `PluginError` that lists every difference of `other` from this lock but the allowed; `where` is what
        is checked."""
        found = self.differences(other, allow)
        if found:
            raise PluginError(
                "plugins differ from the lock: " + "; ".join(found),
                where=where,
                fix="install the locked versions, write a new lock with `forge-host plugins lock`, or allow a "
                "difference by name, as in --allow plugin:dapo",
            )


def make_lock(records: Iterable[PluginRecord], files: Iterable[str] = ()) -> PluginLock:
    """The lock of loaded plugins and of the files that references named."""
    return PluginLock(
        host=__version__,
        api=API_VERSION,
        python=platform.python_version(),
        torch=_version("torch"),
        monarch=_version("torchmonarch"),
        plugins=tuple(_locked(record) for record in sorted(records, key=lambda record: record.name)),
        files={path: file_sha256(Path(path)) for path in sorted(set(files))},
    )


def _plugin_differences(name: str, locked: LockedPlugin | None, here: LockedPlugin | None) -> list[str]:
    if here is None:
        return [f"plugin `{name}` ({locked}) of the lock is not loaded"]
    if locked is None:
        return [f"plugin `{name}` ({here}) is not in the lock"]
    if (locked.distribution, locked.version) != (here.distribution, here.version):
        return [f"plugin `{name}` is {here}, the lock has {locked}"]
    if locked.entry_point != here.entry_point and not locked.path:
        return [f"plugin `{name}` ({here}) is `{here.entry_point}`, the lock has `{locked.entry_point}`"]
    if locked.sha256 != here.sha256:
        hashes = f"hash {here.sha256[:12]}, the lock has {locked.sha256[:12]}"
        return [f"plugin `{name}` ({here}) has other {'source ' if here.editable else ''}files ({hashes})"]
    return []


def _locked(record: PluginRecord) -> LockedPlugin:
    origin = record.origin
    if not origin.distribution:
        path = Path(origin.entry_point)
        return LockedPlugin(
            name=record.name, distribution="", version="", entry_point="", sha256=file_sha256(path), path=str(path)
        )
    package = origin.entry_point.partition(":")[0].partition(".")[0]
    digest, editable = _digest(origin.distribution, package)
    return LockedPlugin(
        name=record.name,
        distribution=origin.distribution,
        version=origin.version,
        entry_point=origin.entry_point,
        sha256=digest,
        editable=editable,
    )


def _digest(name: str, package: str) -> tuple[str, bool]:
    """Hash of a distribution's code, and whether it is an editable install."""
    try:
        dist: Distribution | None = distribution(name)
    except PackageNotFoundError:  # the host itself, run from a checkout on PYTHONPATH
        dist = None
    direct = json.loads((dist.read_text("direct_url.json") if dist else None) or "{}")
    editable = bool(direct.get("dir_info", {}).get("editable"))
    record = dist.read_text("RECORD") if dist and not editable else None
    return (_record_digest(record), False) if record else (_source_digest(package), editable)


def _record_digest(record: str) -> str:
    """Hash of RECORD's lines that say what the code is: not byte code, scripts (their first line names an interpreter),
    or the installer's notes, which differ between two installs of one wheel."""
    lines = sorted(line for line in record.splitlines() if _is_code(line.rpartition(",")[0].rpartition(",")[0]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_code(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if folder.endswith(".dist-info"):
        return name in ("METADATA", "entry_points.txt")
    return not path.startswith(("..", "/")) and not name.endswith(".pyc")


def _source_digest(package: str) -> str:
    """Hash over relative paths and contents of a top-level package or module; it is found, not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise PluginError(f"the source files of `{package}` are not found", fix="install its distribution again")
    digest = hashlib.sha256()
    roots = [Path(root) for root in spec.submodule_search_locations or ()]
    files = [(file, file.relative_to(root)) for root in roots for file in root.rglob("*")]
    files = [(file, relative) for file, relative in files if file.is_file() and _is_source(relative)]
    if not roots and spec.origin:
        files = [(Path(spec.origin), Path(Path(spec.origin).name))]
    for file, relative in sorted(files, key=lambda pair: pair[1].as_posix()):
        digest.update(f"{relative.as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _is_source(relative: Path) -> bool:
    return not any(part == "__pycache__" or part.startswith(".") for part in relative.parts)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]


def _public(text: str | None) -> str | None:
    return text.partition("+")[0] if text else text


def lock_data(lock: PluginLock) -> dict[str, Any]:
    """The lock as plain data, for `--json`."""
    return attrs.asdict(lock)
