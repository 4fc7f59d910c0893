"""The program in a reply.

find_code("Sure:\\n```python\\nprint(1)\\n```", "fence")     # "print(1)\\n"
"""

from __future__ import annotations

import re

WHERE = ("fence", "whole", "either")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+.-]*)")
_LANGUAGES = {"", "python", "py", "python3"}


def find_code(response: str, where: str) -> str | None:
    """The code; None if there is none.

    Args:
        where: "fence" takes the last closed Markdown block marked python, py, python3 or not at all; "whole" takes the
            whole reply; "either" takes the block if there is one, else the whole reply. In all of them only what
            follows the last `</think>` counts.
    """
    reply = response.rpartition("</think>")[2]
    code = _last_block(reply) if where != "whole" else None
    if code is None and where != "fence":
        code = reply
    return code if code is not None and code.strip() else None


def _last_block(text: str) -> str | None:
    found, open_fence, language = None, "", ""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if not open_fence:
            if mark:
                open_fence, language, lines = mark.group(1), mark.group(2).lower(), []
        elif mark and mark.group(1).startswith(open_fence) and not line[mark.end(1) :].strip():
            if language in _LANGUAGES:
                found = "".join(lines)
            open_fence = ""
        else:
            lines.append(line)
    return found
