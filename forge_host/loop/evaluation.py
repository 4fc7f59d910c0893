"""Evaluation on held-out prompts: mean reward, pass@k, confidence interval, greedy and sampled; the same code for
`evaluation.interval` in a run and for `forge-host eval`.

    metrics, groups = await evaluate(roller, prompts, n_samples=4, temperature=1.0, greedy=True, solved_at=1.0)
    metrics["eval/pass@4"]

pass@k is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374): 1 - C(n - c, k) / C(n, k) for c of n solved.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import attrs

from forge_host.loop.rollout import Roller
from forge_host.types import Group, Prompt, SamplingParams

Z95 = 1.959963984540054


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement is solved.

    Raises:
        ValueError: k is larger than the number of samples.
    """
    if k > num_samples:
        raise ValueError(f"pass@{k} needs {k} samples, there are {num_samples}")
    if num_samples - num_solved < k:
        return 1.0
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to `limit`, and `limit` itself."""
    return sorted({2**i for i in range(limit.bit_length()) if 2**i <= limit} | {limit})


async def evaluate(
    roller: Roller,
    prompts: Iterable[Prompt],
    *,
    n_samples: int,
    temperature: float,
    greedy: bool,
    solved_at: float,
    max_in_flight: int = 256,
) -> tuple[dict[str, float], list[Group]]:
    """Generate, grade and summarise.

    Args:
        n_samples: sampled completions per prompt; 0 leaves sampling out.
        temperature: of the sampled completions.
        greedy: also one greedy completion per prompt.
        solved_at: a reward of at least this counts as solved in pass@k.
        max_in_flight: prompts at a time.

    Returns:
        metrics (`eval/...`), and the groups, sampled first; a group's id says which it is.
    """
    slots = asyncio.Semaphore(max_in_flight)

    async def one(kind: str, prompt: Prompt, params: SamplingParams) -> Group:
        async with slots:
            episodes = await roller.episodes(f"eval-{kind}:{prompt.id}", prompt, params)
            return Group(id=f"eval-{kind}:{prompt.id}", prompt=prompt, episodes=tuple(episodes))

    prompts = list(prompts)
    base = attrs.evolve(roller.sampling, top_p=1.0, top_k=0)
    sampled = attrs.evolve(base, n=max(n_samples, 1), temperature=temperature)
    jobs = [one("sampled", p, sampled) for p in prompts] if n_samples else []
    jobs += [one("greedy", p, attrs.evolve(base, n=1, temperature=0.0)) for p in prompts] if greedy else []
    groups = list(await asyncio.gather(*jobs))
    metrics: dict[str, float] = {"eval/num_prompts": float(len(prompts))}
    if n_samples:
        metrics |= summarise(groups[: len(prompts)], "eval", solved_at, powers_of_two(n_samples))
    if greedy:
        metrics |= summarise(groups[-len(prompts) :], "eval/greedy", solved_at, [])
    return metrics, groups


def summarise(groups: Sequence[Group], name: str, solved_at: float, ks: Sequence[int]) -> dict[str, float]:
    """Mean reward with the half-width of its 95% interval over prompts, error rate, length, pass@k, and categories.

    A prompt's category is `metadata["category"]`; an ungraded completion counts in the error rate only.
    """
    episodes = [e for g in groups for e in g.episodes]
    means = [statistics.fmean(g.rewards) for g in groups if g.rewards]
    out = {
        **({f"{name}/mean": statistics.fmean(means)} if means else {}),  # nothing graded is not a 0
        **({f"{name}/ci95": Z95 * statistics.stdev(means) / math.sqrt(len(means))} if len(means) > 1 else {}),
        f"{name}/error_rate": statistics.fmean(e.reward is None for e in episodes),
        f"{name}/length_mean": statistics.fmean(e.completion.num_sampled for e in episodes),
    }
    for k in ks:
        chances = [
            pass_at_k(len(g.rewards), sum(r >= solved_at for r in g.rewards), k) for g in groups if len(g.rewards) >= k
        ]
        if chances:
            out[f"{name}/pass@{k}"] = statistics.fmean(chances)
    by_category: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        if group.rewards and "category" in group.prompt.metadata:
            by_category[str(group.prompt.metadata["category"])].append(statistics.fmean(group.rewards))
    return out | {f"{name}/category/{c}/mean": statistics.fmean(v) for c, v in sorted(by_category.items())}
