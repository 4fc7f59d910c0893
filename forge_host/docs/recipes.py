"""The recipes that the package ships, as they are, and whether each has an expected curve.

page()
"""

from __future__ import annotations

from forge_host.config.recipes import find_config, recipe_names
from forge_host.docs.markdown import NOTE
from forge_host.report.reference import load_reference, reference_names


def page() -> str:
    """`reference/recipes.md`."""
    out = ["# Recipes\n", NOTE, "A recipe's name is a configuration: `forge-host run NAME`, and `--set` changes it.\n"]
    for name in recipe_names():
        text = find_config(name).read_text(encoding="utf-8").strip()
        if name in reference_names():
            curve = f"Its expected curve: {load_reference(name).runs}; `--check` compares a run with it."
        else:
            curve = "It has no expected curve, and `--check` says so."
        out.append(f"## {name}\n\n{curve}\n\n```yaml\n{text}\n```\n")
    return "\n".join(out)
