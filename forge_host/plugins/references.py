"""Finding the component that a reference names: `dapo`, `dapo/dapo`, `my_pkg.losses:MyLoss`, `./rewards.py:MyReward`.

    lookup(entries, "loss", "dapo")      # the Entry, or None when there is no such name
    direct("reward", "./rewards.py:MyReward")

Two providers of one name are an error, never a choice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from forge_host.errors import PluginError
from forge_host.plugins.records import Entry, Origin
from forge_host.plugins.suggest import listing, near
from forge_host.plugins.targets import is_file_reference, local_file
from forge_host.types import NAME, ComponentSpec, Kind


def is_direct(ref: str) -> bool:
    """Whether `ref` needs no plugin."""
    return ":" in ref or is_file_reference(ref)


def direct(kind: Kind, ref: str) -> Entry:
    """The entry of `pkg.mod:Attr` or `file.py:Attr`; a file must exist, and becomes absolute. Imports nothing."""
    location, _, attribute = ref.rpartition(":")
    what = f"{kind} `{ref}`"
    if is_file_reference(ref):
        path = local_file(location or ref, what)
        if not location or not attribute:
            offered = listing(_top_level(path.read_text(encoding="utf-8")), "nothing")
            raise PluginError(
                "the reference names a file and nothing in it",
                where=what,
                fix=f"write {ref.rstrip(':')}:NAME; it has {offered}",
            )
        location = str(path)
    if not location or not attribute:
        raise PluginError(
            "not a reference", where=what, fix="write NAME, PLUGIN/NAME, package.module:NAME or file.py:NAME"
        )
    target = f"{location}:{attribute}"
    spec = ComponentSpec(component_name(attribute), target, f"{attribute} from {location}")
    return Entry(kind, "", spec, Origin(entry_point=target, location=location))


def component_name(attribute: str) -> str:
    """A component's name out of a Python name: `MyReward` is `my-reward`, used in metric names."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", attribute.rpartition(".")[2])
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return name if NAME.match(name) else f"c-{name}".rstrip("-")


def _top_level(source: str) -> list[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def lookup(entries: Sequence[Entry], kind: Kind, ref: str) -> Entry | None:
    """The one entry of `kind` that `ref` names; None when there is none; `PluginError` when there are several."""
    plugin, _, name = ref.rpartition("/")
    found = [e for e in entries if e.kind == kind and e.spec.name == name and plugin in ("", e.plugin)]
    if len(found) > 1:
        owners = " and ".join(f"{entry.origin} (as `{entry.ref}`)" for entry in found)
        raise PluginError(
            f"{kind} `{ref}` is offered by {owners}",
            fix="write " + " or ".join(f"`{entry.ref}`" for entry in found),
        )
    return found[0] if found else None


def unknown(entries: Sequence[Entry], kind: Kind, ref: str, notes: Mapping[str, PluginError]) -> PluginError:
    """The error for a reference that names nothing; `notes` says by plugin why it is not loaded."""
    plugin, _, name = ref.rpartition("/")
    message = f"no {kind} is named `{ref}`"
    elsewhere = [e for e in entries if e.kind != kind and e.spec.name == name and plugin in ("", e.plugin)]
    if elsewhere:
        kinds = " and ".join(f"{article(e.kind)} ({e.origin})" for e in elsewhere)
        message += f"; `{name}` is {kinds}"
    owner = plugin or ref
    if owner in notes:
        return PluginError(f"{message}; {notes[owner].message}", fix=notes[owner].fix)
    if notes:
        message += f" ({'; '.join(note.message for note in notes.values())})"
    offered = [e for e in entries if e.kind == kind]
    matches = near(ref, [e.ref for e in offered] if plugin else [e.spec.name for e in offered])
    if not matches and plugin:
        matches = [e.ref for e in offered if e.spec.name in near(name, [o.spec.name for o in offered])]
    if matches:
        return PluginError(message, fix="did you mean " + " or ".join(f"`{match}`" for match in matches) + "?")
    return PluginError(message, fix=f"`forge-host components list {kind}` shows what there is")


def article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
