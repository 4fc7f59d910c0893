"""Memory and time of the `jsonl` dataset on a file of a million lines.

    python contrib/bench/jsonl_memory.py [LINES]

Bar: memory grows by about 16 bytes a line (its place in the file), whatever a line holds.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from forge_host.builtin.jsonl import JsonLines
from forge_host.loop.stream import PromptStream


def megabytes() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.jsonl"
        with path.open("w") as file:
            for i in range(count):
                file.write(f'{{"question": "What is {i} + 1? {"Think well. " * 20}", "answer": "#### {i + 1}"}}\n')
        before, start = megabytes(), time.perf_counter()
        dataset = JsonLines(path=str(path), holdout=0.01)
        kept = len(dataset)
        print(f"{count:,} lines, {path.stat().st_size / 1e6:.0f} MB, {kept:,} in the split")
        print(
            f"checked and indexed in {time.perf_counter() - start:.1f} s, memory {before:.0f} -> {megabytes():.0f} MB"
        )
        stream, start = PromptStream(dataset, seed=0), time.perf_counter()
        head = [prompt.id for prompt in islice(stream, 20_000)]
        print(f"{len(head) / (time.perf_counter() - start):,.0f} shuffled prompts/s, memory {megabytes():.0f} MB")
        other = PromptStream(dataset, seed=0)
        other.load_state_dict(stream.state_dict())
        same = [p.id for p in islice(other, 1000)] == [p.id for p in islice(stream, 1000)]
        print(f"resumed at {len(head):,}: the same next 1,000 prompts: {same}")


if __name__ == "__main__":
    main()
