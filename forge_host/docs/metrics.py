"""The metrics reference, from the registry that the reports use too.

page()
"""

from __future__ import annotations

from forge_host.docs.markdown import NOTE, code, table
from forge_host.report.metrics import REGISTRY

INTRO = """\
`metrics.jsonl` has one object a step: `{"step", "policy_version", "time", "metrics": {...}}`. A `*` stands for what a
configuration names. A plugin's trainer may add names of its own.
"""


def page() -> str:
    """`reference/metrics.md`."""
    rows = [(code(m.name), m.unit, m.reduction, m.help.replace("*", "\\*")) for m in REGISTRY]
    return "\n".join(["# Metrics\n", NOTE, INTRO, table(("name", "unit", "over a step", "meaning"), rows)])
