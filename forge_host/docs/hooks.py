"""The hooks reference: signature, meaning, first-party implementations, and an example that the tests load.

page()
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from forge_host.docs.markdown import NOTE, table
from forge_host.docs.plugins import first_party
from forge_host.hookspecs import DECLARATION_HOOKS, HOOKS, OBSERVER_HOOKS, ForgeSpecs

EXAMPLE = Path(__file__).parent / "examples" / "every_hook.py"


def examples() -> dict[str, str]:
    """Source of each hook's implementation in `examples/every_hook.py`."""
    text = EXAMPLE.read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("forge_"):
            segment = ast.get_source_segment(text, node)
            found[node.name] = f"@hookimpl\n{segment}"
    return found


def page() -> str:
    """`reference/hooks.md`."""
    host, shown = first_party(), examples()
    intro = inspect.getdoc(inspect.getmodule(ForgeSpecs)) or ""
    rows = [
        (f"[`{name}`](#{name})", "declaration" if name in DECLARATION_HOOKS else "observer", _summary(name))
        for name in HOOKS
    ]
    out = ["# Hooks\n", NOTE, f"```text\n{intro}\n```\n", table(("hook", "type", "what it is for"), rows)]
    for heading, names in (("Declaration hooks", DECLARATION_HOOKS), ("Observer hooks", OBSERVER_HOOKS)):
        out.append(f"## {heading}\n")
        for name in names:
            out += [f"### {name}\n", _section(name, host.hooks.order(name), shown.get(name))]
    return "\n".join(out)


def _summary(name: str) -> str:
    return (inspect.getdoc(getattr(ForgeSpecs, name)) or "").splitlines()[0]


def _section(name: str, plugins: list[str], example: str | None) -> str:
    spec = getattr(ForgeSpecs, name)
    signature = inspect.signature(spec)
    arguments = ", ".join(f"{k}: {p.annotation}" for k, p in signature.parameters.items() if k != "self")
    facts = f"Since API {spec.forge_since}."
    if spec.forge_deprecated:
        facts += f" Deprecated: {spec.forge_deprecated}."
    used = f" Implemented by {', '.join(f'`{p}`' for p in plugins)}." if plugins else ""
    return (
        f"```text\n{name}({arguments}) -> {signature.return_annotation}\n```\n\n{inspect.getdoc(spec)}\n\n"
        f"{facts}{used}\n" + (f"\n```py\n{example}\n```\n" if example else "")
    )
