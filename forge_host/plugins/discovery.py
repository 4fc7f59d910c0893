"""Level 0: which plugins are installed, from package metadata alone. No plugin is imported, so none can break it.

    from forge_host.plugins import discover

    for record in discover():
        print(record.name, record.origin, record.state)

`importlib.metadata.entry_points` alone would do for well-behaved installs; here two distributions that claim one name
are both kept and marked, and one distribution that is seen twice (an editable install beside an old egg-info, lib64
linked to lib) counts once, as the one that Python's own look-up by name finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

import attrs

from forge_host.plugins.records import BUILTIN, GROUP, PREFIX, Origin, PluginRecord

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")


def normalize(name: str) -> str:
    """A distribution's name as PEP 503 compares it: `Forge_Plugin.X` is `forge-plugin-x`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def discover() -> list[PluginRecord]:
    """Every installed plugin, sorted by name and distribution.

    State "discovered" is a plugin that may be loaded; "conflict" one of several that claim the name; "failed" one whose
    entry point breaks the naming rule.
    """
    records = sorted(
        {record for name in _names() for record in _records(name)},
        key=lambda record: (record.name, record.origin.distribution, record.origin.entry_point),
    )
    owners: dict[str, list[PluginRecord]] = {}
    for record in records:
        owners.setdefault(record.name, []).append(record)
    return [_mark(record, owners[record.name]) for record in records]


def shadowed() -> dict[str, list[str]]:
    """Plugin distributions that are on the path more than once: name to "version in folder", the used one first."""
    places = {name: list(dict.fromkeys(map(_place, Distribution.discover(name=name)))) for name in _names()}
    return {name: found for name, found in places.items() if len(found) > 1}


def _place(dist: Distribution) -> str:
    return f"{dist.version} in {Path(str(dist.locate_file(''))).resolve()}"


def _names() -> list[str]:
    """Names of distributions that mention the group. Reading the text first spares parsing a few hundred files."""
    found = {
        normalize(dist.metadata["Name"])
        for dist in Distribution.discover()
        if GROUP in (dist.read_text("entry_points.txt") or "") and _has_metadata(dist)
    }
    return sorted(found)


def _has_metadata(dist: Distribution) -> bool:
    """False for the rest of an interrupted uninstall, which Python would fail to read."""
    return bool(dist.read_text("METADATA") or dist.read_text("PKG-INFO"))


def _records(name: str) -> Iterable[PluginRecord]:
    dist = next(dist for dist in Distribution.discover(name=name) if _has_metadata(dist))
    distribution = dist.metadata["Name"]
    for entry_point in dist.entry_points.select(group=GROUP):
        origin = Origin(distribution, dist.version, entry_point.value, str(dist.locate_file("")))
        record = PluginRecord(name=entry_point.name, origin=origin)
        reason = _naming(entry_point.name, name)
        yield attrs.evolve(record, state="failed", reason=reason) if reason else record


def _naming(plugin: str, distribution: str) -> str:
    """Why the entry point's name is not allowed, or ""."""
    if plugin == BUILTIN:
        return f"the name `{BUILTIN}` belongs to the host"
    if distribution.startswith(PREFIX) and plugin != distribution.removeprefix(PREFIX):
        wanted = distribution.removeprefix(PREFIX)
        return f"its entry point is named `{plugin}`; the distribution `{distribution}` must name it `{wanted}`"
    if not _NAME.match(plugin):
        return f"its entry point `{plugin}` is not lower-case words joined by `-`"
    return ""


def _mark(record: PluginRecord, same_name: list[PluginRecord]) -> PluginRecord:
    others = [other for other in same_name if other != record and other.state != "failed"]
    if not others or record.state == "failed":
        return record
    claims = " and ".join(
        f"{other.origin} (entry point `{other.origin.entry_point}`)" for other in [record, *others]
    )
    return attrs.evolve(record, state="conflict", reason=f"the name `{record.name}` is claimed by {claims}")
