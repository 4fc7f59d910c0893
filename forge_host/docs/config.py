"""The configuration reference: every section and key, from the attrs classes that read them.

page()
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from forge_host.config import schema
from forge_host.docs.markdown import NOTE, cell, code, settings, table
from forge_host.docs.plugins import first_party
from forge_host.plugins.fields import describe
from forge_host.types import KL, Aggregation, Correction, SamplingParams

INTRO = """\
A configuration is a YAML file. Later wins: defaults, the algorithm's preset, files in the order they are named, the
command line. `forge-host config explain CONFIG KEY` says where a value came from; a key that nothing reads is an error
with its line.

`dataset: train.jsonl` is short for `dataset: {path: train.jsonl}`, `trainer: titan` for `trainer: {use: titan}`; a
component's own keys stand beside `use` (or `path`) and are listed under [components](components.md).
"""
#: Sections of keys that replace an algorithm's, and the class that says them.
REPLACED = {"aggregation": Aggregation, "kl": KL, "correction": Correction, "sampling": SamplingParams}
#: Sections whose class stands in no default.
INSIDE = {"services": ("services.ROLE", schema.ServiceConfig)}


def sections() -> Iterator[tuple[str, type, str]]:
    """(dotted name, class, help) of every section of the host."""
    for field in attrs.fields(schema.RunConfig):
        help_text = str(field.metadata.get("help") or "")
        if field.name in REPLACED:
            yield field.name, REPLACED[field.name], help_text
        elif field.name in INSIDE:
            name, cls = INSIDE[field.name]
            yield name, cls, help_text
        else:
            factory = getattr(field.default, "factory", None)
            if isinstance(factory, type) and attrs.has(factory):
                yield field.name, factory, help_text


def page() -> str:
    """`reference/config.md`."""
    nested = {name.partition(".")[0] for name, _, _ in sections()}
    top = [row for row in describe(schema.RunConfig) if row.name not in nested and row.name != "algorithm_config"]
    rows = [
        (code(r.name), cell(r.type.replace("RoleConfig", "component")), code(_default(r.default)), cell(r.help))
        for r in top
    ]
    out = ["# Configuration\n", NOTE, INTRO, "## Top level\n", table(("key", "type", "default", "what it is"), rows)]
    for name, cls, help_text in sections():
        out.append(f"## {name}\n\n{help_text.capitalize()}.\n\n{settings(cls)}")
    host = first_party()
    out.append(
        "## Algorithm sections\n\n"
        "A section with an algorithm's name chooses it and sets its keys: `grpo: {n_samples: 8}`.\n"
    )
    for entry in host.entries("algorithm"):
        config = host.config_class(entry)
        if config is not None:
            out.append(f"### {entry.spec.name}\n\n{cell(entry.spec.summary)}.\n\n{settings(config)}")
    return "\n".join(out)


def _default(text: str) -> str:
    """Long defaults are objects; the sections below say them better."""
    return "" if len(text) > 60 or "(" in text else text
