"""Gradings a second of the `math` reward's numeric path on one core, and its time on hostile replies of 64 kB.

    python contrib/bench/math_reward.py [GSM8K_TEST.jsonl]

Without a file it grades made-up solutions of GSM8K's length. Bars: 20,000 a second, 20 ms.
"""

from __future__ import annotations

import json
import sys
import time

from forge_plugin_math.reward import MathReward


def solutions(path: str | None) -> list[tuple[str, str]]:
    """(reply, target) pairs: each reference solution as the reply, against itself and against another's answer."""
    if path:
        with open(path, encoding="utf-8") as file:
            texts = [json.loads(line)["answer"] for line in file]
    else:
        step = "She sells {n} eggs a day for $2 each, so she makes {n} * 2 = ${m} a day. "
        texts = [step.format(n=n, m=2 * n) * 4 + f"\n#### {2 * n}" for n in range(1, 1320)]
    return [(text, target) for text, other in zip(texts, texts[1:], strict=False) for target in (text, other)]


def main() -> None:
    pairs, reward = solutions(sys.argv[1] if len(sys.argv) > 1 else None), MathReward()
    for name, form in {
        "#### in the reply": lambda text: text,
        "last number": lambda text: text.replace("####", "So"),
    }.items():
        replies = [(form(reply), target) for reply, target in pairs]
        best = 0.0
        for _ in range(5):
            start = time.perf_counter()
            for reply, target in replies:
                reward(reply, target)
            best = max(best, len(replies) / (time.perf_counter() - start))
        mean = sum(len(reply) for reply, _ in replies) / len(replies)
        print(f"{name:20} {best:10,.0f} gradings/s  (replies of {mean:.0f} characters on average)")
    for piece in ("<answer>", "<", "(", "{", r"\boxed{", r"\boxed{}", r"\frac", "1", "1 ", "1,", "-"):
        text = (piece * 65_536)[:65_536]
        start = time.perf_counter()
        reward(text, "5")
        print(f"64 kB of {piece!r:12} {1000 * (time.perf_counter() - start):8.2f} ms")


if __name__ == "__main__":
    main()
