"""The browser page of rollouts: one file that holds its episodes and filters them without a server.

    write_page(run, select(run, limit=10_000))

The episodes are JSON inside the page; the script (rollouts.js) writes them as text, never as markup.
"""

from __future__ import annotations

import json
import os
from html import escape
from importlib.resources import files
from pathlib import Path

from forge_host.errors import UsageError
from forge_host.report.html import document, prompt_text
from forge_host.report.rollouts import Selection
from forge_host.report.rundata import Run

#: The order of an episode's values in the page; a list is half the size of an object with names.
COLUMNS = (
    "step", "kind", "prompt", "target", "response", "reward", "num_tokens", "finish_reason", "kept", "reason", "note",
    "error", "parts",
)  # fmt: skip


def write_page(run: Run, found: Selection, out: str | None = None) -> Path:
    """Write the page, by default `rollouts.html` in the run directory. Returns its path.

    Raises:
        UsageError: the file cannot be written.
    """
    path = Path(out).expanduser() if out else run.path / "rollouts.html"
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(page(run, found), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", fix="name another file: --html=FILE") from error
    return path


def page(run: Run, found: Selection) -> str:
    """The HTML document."""
    rows = [[prompt_text(row) if c == "prompt" else row.get(c) for c in COLUMNS] for row in found.rows]
    parts = sorted({name for row in found.rows for name in row.get("parts") or ()})
    data = {"columns": COLUMNS, "parts": parts, "rows": rows}
    # "</script>" and "<!--" inside a text would end or confuse the element; \u003c is the same text to JSON.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    script = (files("forge_host.report") / "rollouts.js").read_text(encoding="utf-8")
    shown = f"{len(rows)} of {found.total} episodes are in this page"
    body = f"""
<h1>Rollouts of {escape(run.name)}</h1><p class="muted">{shown}</p>
<form class="filters" onsubmit="return false">
  <label class="grow">text <input id="text" type="search" placeholder="in prompt, response, note"></label>
  <label>kind <select id="kind"><option value="">all</option></select></label>
  <label>finish <select id="finish"><option value="">all</option></select></label>
  <label>trained on <select id="kept"><option value="">all</option><option value="true">yes</option>
    <option value="false">no</option></select></label>
  <label>step from <input id="from" type="number" min="0"></label>
  <label>to <input id="to" type="number" min="0"></label>
  <label>value of <select id="part"><option value="reward">reward</option></select></label>
  <label>at least <input id="low" type="number" step="any"></label>
  <label>at most <input id="high" type="number" step="any"></label>
  <label>order <select id="order"><option value="new">newest first</option><option value="old">oldest first</option>
    <option value="most">largest value first</option><option value="least">smallest value first</option>
    <option value="long">longest first</option></select></label>
</form>
<p id="count" role="status"></p><div id="list" class="samples"></div>
<p><button id="more" type="button">show more</button></p>"""
    data_element = f'<script id="data" type="application/json">{text}</script>'
    return document(f"Rollouts of {run.name}", body, f"{data_element}<script>{script}</script>")
