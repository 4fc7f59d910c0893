"""The reference of `forge_host.api`, the one module that plugins import.

page()
"""

from __future__ import annotations

import inspect
from typing import Any

import attrs

from forge_host import api
from forge_host.docs.markdown import NOTE, docstring, settings

#: Kept out: typing aliases whose values the text around them says.
ALIASES = ("Aggregation", "Kind")


def page() -> str:
    """`reference/api.md`."""
    out = ["# Plugin API\n", NOTE, docstring(api)]
    groups: dict[str, list[str]] = {"Protocols": [], "Records": [], "Errors": [], "Functions and constants": []}
    for name in api.__all__:
        thing = getattr(api, name)
        if isinstance(thing, type) and getattr(thing, "_is_protocol", False):
            groups["Protocols"].append(name)
        elif isinstance(thing, type) and issubclass(thing, Exception):
            groups["Errors"].append(name)
        elif isinstance(thing, type):
            groups["Records"].append(name)
        else:
            groups["Functions and constants"].append(name)
    for title, names in groups.items():
        out.append(f"## {title}\n")
        out += [_section(name, getattr(api, name)) for name in names]
    return "\n".join(out)


def _section(name: str, thing: Any) -> str:
    head = f"### {name}\n\n"
    if isinstance(thing, type):
        if getattr(thing, "_is_protocol", False):
            methods = "\n".join(
                f"{method}{_signature(function)}"
                for method, function in vars(thing).items()
                if inspect.isfunction(function) and (not method.startswith("_") or method in ("__call__", "__iter__"))
                and function.__qualname__.startswith(f"{name}.")
            )  # fmt: skip
            return f"{head}{docstring(thing)}\n```text\n{methods}\n```\n"
        table = settings(thing) if attrs.has(thing) else ""
        return f"{head}{docstring(thing)}\n{table}"
    if callable(thing):
        return f"{head}```text\n{name}{_signature(thing)}\n```\n\n{docstring(thing)}"
    return f"{head}```text\n{thing!r}\n```\n"


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function)).replace("'", "")
    except ValueError:
        return "(...)"
