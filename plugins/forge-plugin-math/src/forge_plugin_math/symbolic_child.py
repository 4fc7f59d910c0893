"""The child of `forge_plugin_math.symbolic`: one JSON list [gold, answer, seconds] a line in, 1 or 0 a line out.

echo '["\\\\frac{1}{2}", "0.5", 3]' | python -m forge_plugin_math.symbolic_child 2147483648
"""

from __future__ import annotations

import json
import logging
import math
import resource
import signal
import sys
from typing import Any


def main() -> None:
    output = sys.stdout
    sys.stdout = sys.stderr  # nothing a library prints may pass for a verdict
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.WARNING)  # math-verify warns that we keep the deadline ourselves
    from functools import lru_cache

    from math_verify import LatexExtractionConfig, parse, verify

    @lru_cache(maxsize=4096)
    def parsed(text: str) -> list[Any]:
        # As one formula: math-verify would otherwise pick the last number out of a list of guesses.
        formula = "$" + " ".join(text.replace("$", " ").split()) + "$"
        result: list[Any] = parse(formula, [LatexExtractionConfig(boxed_match_priority=-1)], parsing_timeout=None)
        return result

    print("ready", file=output, flush=True)
    for line in sys.stdin:
        gold, answer, timeout_s = json.loads(line)
        # The parent kills a late child; the alarm does if the parent is gone. Its default action needs no Python.
        signal.alarm(math.ceil(timeout_s) + 1)
        right = verify(parsed(gold), parsed(answer), timeout_seconds=None)
        signal.alarm(0)
        print(int(right), file=output, flush=True)


if __name__ == "__main__":
    main()
