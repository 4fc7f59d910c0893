"""What is wrong with the installed plugins, each finding with the command that mends it.

    for problem in diagnose():
        print(problem.plugin, problem.level, problem.message, problem.fix)

Every declaration module is first imported alone in a process of its own, which measures it and survives whatever it
does; then the plugins are loaded here as `--help` would load them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import attrs

from forge_host.plugins.discovery import discover, normalize, shadowed
from forge_host.plugins.host import PluginHost, check_installed
from forge_host.plugins.lock import PluginLock
from forge_host.plugins.records import Entry, PluginRecord
from forge_host.plugins.suggest import listing
from forge_host.plugins.targets import HEAVY, missing_modules
from forge_host.types import KINDS

#: A declaration module slower than this delays every command, `--help` too.
SLOW_SECONDS = 0.5
PROBE_TIMEOUT_SECONDS = 60.0

Level = Literal["error", "warning"]


@attrs.frozen
class Problem:
    """One finding: about which plugin, found by which check, how bad, what is wrong, what to do."""

    plugin: str
    check: str
    level: Level
    message: str
    fix: str


@attrs.frozen
class Probe:
    """What importing a declaration module alone did; `heavy` names the modules of HEAVY that it brought in."""

    seconds: float = 0.0
    heavy: tuple[str, ...] = ()
    hangs: bool = False


def diagnose(
    names: Sequence[str] | None = None, files: Sequence[str] = (), lock: PluginLock | None = None
) -> list[Problem]:
    """Every problem of the plugins `names` (None: all installed), errors first; with `lock` also what drifted.

    Raises:
        PluginError: a name is not installed.
    """
    # Nothing is loaded yet: this host is here for its checked names and its records.
    seen = PluginHost.load(()).records
    check_installed(names or (), [record.name for record in seen])
    asked = [record.name for record in seen] if names is None else [normalize(name) for name in names]
    probes = probe([record for record in seen if record.state == "discovered" and record.name in asked])
    hanging = [name for name, probe in probes.items() if probe.hangs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is among the problems
        host = PluginHost.load(asked, block=hanging, files=files)
    wanted = {*asked, *(record.name for record in host.records if files and not record.origin.distribution)}
    records = [record for record in host.records if record.name in wanted]
    problems = [problem for record in records for problem in _broken(record)]
    for record in records:
        problems += _probed(record, probes.get(record.name, Probe()))
    problems += _shadowed(records)
    problems += [p for entry in _entries(host) if entry.plugin in wanted for p in _requirements(entry)]
    problems += [
        Problem(record.name, "deprecated", "warning", text, "follow the message")
        for record in records
        for text in host.deprecations_of(record.name)
    ]
    if names is None:
        problems += _ambiguous(_entries(host))
    if lock is not None:
        problems += _drift(lock)
    return sorted(problems, key=lambda p: (p.level != "error", p.plugin, p.check))


def probe(records: Iterable[PluginRecord]) -> dict[str, Probe]:
    """Imports each plugin's declaration module in a process of its own, a few at a time."""
    todo = list(records)
    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip((record.name for record in todo), pool.map(_probe, todo), strict=True))


_PROBE = """
import importlib, json, sys, time
sys.path[:] = json.loads(sys.argv[1])
import forge_host.api
before = set(sys.modules)
start = time.perf_counter()
try:
    importlib.import_module(sys.argv[2])
except BaseException:
    pass  # loading it says why
seconds = time.perf_counter() - start
heavy = [name for name in sys.argv[3].split() if name in sys.modules and name not in before]
print("\\n" + json.dumps([seconds, heavy]))
"""


def _probe(record: PluginRecord) -> Probe:
    module = record.origin.entry_point.partition(":")[0].strip()
    command = [sys.executable, "-c", _PROBE, json.dumps(sys.path), module, " ".join(HEAVY)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Probe(PROBE_TIMEOUT_SECONDS, hangs=True)
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("["):
        return Probe()  # it ended the interpreter
    seconds, heavy = json.loads(lines[-1])
    return Probe(seconds, tuple(heavy))


def _broken(record: PluginRecord) -> Iterable[Problem]:
    if not record.broken:
        return
    name = record.origin.distribution
    fixes = {
        "conflict": f"pip uninstall {name}   # or the other one",
        "incompatible": f"pip install --upgrade {'forge-host' if 'upgrade forge-host' in record.reason else name}",
        "failed": f"pip install --force-reinstall {name}   # or mend its source, or pip uninstall {name}",
    }
    fix = fixes[record.state] if name else f"edit {record.origin.entry_point}"
    yield Problem(record.name, record.state, "error", f"{record.describe()} cannot be loaded: {record.reason}", fix)


def _probed(record: PluginRecord, probe: Probe) -> Iterable[Problem]:
    module = record.origin.entry_point.partition(":")[0]
    if probe.hangs:
        message = f"importing `{module}` took more than {probe.seconds:.0f} s"
        yield Problem(record.name, "slow", "error", message, _uninstall(record))
        return
    if probe.heavy:
        yield Problem(
            record.name,
            "heavy",
            "warning",
            f"its declaration module `{module}` imports {listing(probe.heavy)}, which slows every command",
            "import them in the component's own module, not in the declaration module",
        )
    if probe.seconds > SLOW_SECONDS:
        yield Problem(
            record.name,
            "slow",
            "warning",
            f"importing its declaration module `{module}` takes {probe.seconds:.1f} s, more than {SLOW_SECONDS} s",
            f"python -X importtime -c 'import {module}'   # shows where",
        )


def _uninstall(record: PluginRecord) -> str:
    return f"pip uninstall {record.origin.distribution}   # or block it: --no-plugin {record.name}"


def _shadowed(records: Sequence[PluginRecord]) -> Iterable[Problem]:
    by_distribution = {normalize(r.origin.distribution): r.name for r in records if r.origin.distribution}
    for distribution, places in shadowed().items():
        if distribution in by_distribution:
            yield Problem(
                by_distribution[distribution],
                "shadowed",
                "warning",
                f"{distribution} is installed more than once: {places[0]} is used, {', '.join(places[1:])} is not",
                f"pip uninstall -y {distribution} && pip install {distribution}",
            )


def _requirements(entry: Entry) -> Iterable[Problem]:
    spec = entry.spec
    missing = missing_modules(spec.requires)
    if missing:
        yield Problem(
            entry.plugin,
            "requires",
            "error",
            f"{entry.describe()} needs {listing(missing)}, not installed here",
            f"pip install {' '.join(missing)}   # or the distribution that provides it",
        )
    for target in filter(None, (spec.target, spec.config)):
        location = target.partition(":")[0]
        if not location.endswith(".py") and missing_modules([location]):
            yield Problem(
                entry.plugin,
                "target",
                "error",
                f"{entry.describe()} names `{target}`, and there is no module `{location}`",
                f"pip install --force-reinstall {entry.origin.distribution}",
            )


def _ambiguous(entries: Sequence[Entry]) -> Iterable[Problem]:
    for kind in KINDS:
        owners: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.kind == kind:
                owners.setdefault(entry.spec.name, []).append(entry)
        for name, found in owners.items():
            if len(found) > 1:
                refs = " or ".join(f"`{entry.ref}`" for entry in found)
                origins = " and ".join(str(entry.origin) for entry in found)
                yield Problem(
                    found[0].plugin, "ambiguous", "warning", f"{kind} `{name}` is offered by {origins}", f"write {refs}"
                )


def _drift(lock: PluginLock) -> Iterable[Problem]:
    installed = {record.name for record in discover()}
    here = [p.name for p in lock.plugins if p.name in installed]
    host = PluginHost.load(here, files=[p.path for p in lock.plugins if p.path and Path(p.path).is_file()])
    for difference in lock.differences(attrs.evolve(host.lock(), files=lock.files)):
        pins = " ".join(f"{p.distribution}=={p.version}" for p in lock.plugins if p.distribution)
        yield Problem("", "drift", "error", difference, f"pip install {pins}   # or write a new lock")


def _entries(host: PluginHost) -> list[Entry]:
    return [entry for kind in KINDS for entry in host.entries(kind)]
