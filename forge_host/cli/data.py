"""`forge-host data show`: what a configuration's dataset becomes before any run: rendered prompts and token counts.

    forge-host data show c.yaml -n 2
    forge-host data show c.yaml --grade                 # do the rewards take the right answers?
    forge-host data show sft_smollm2 --count 2000 --json

Of an offline algorithm (SFT) it shows whole examples, what is trained on between >>> and <<<.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import click

from forge_host.cli.common import CONFIG_CONTEXT, Setup, config_options
from forge_host.errors import UsageError

if TYPE_CHECKING:
    from forge_host.config import Resolved
    from forge_host.types import Episode, Prompt

GRADED_AT_ONCE = 16  # rewards may wait for a judge or a sandbox


@click.group()
def data() -> None:
    """Look at the data of a configuration."""


@attrs.frozen(kw_only=True)
class Shown:
    """One prompt or example: its text, and how many tokens it has and trains on."""

    id: str
    text: str
    target: str | None
    tokens: int
    trained: int | None
    fits: bool


@data.command(context_settings=CONFIG_CONTEXT)
@config_options
@click.option("-n", "--num", type=click.IntRange(min=0), default=3, show_default=True, help="Prompts to show in full.")
@click.option("--count", type=click.IntRange(min=1), default=1000, show_default=True, help="Prompts to count.")
@click.option("--grade", is_flag=True, help="Grade each target as if it were the reply: what the rewards cannot take.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def show(setup: Setup, num: int, count: int, grade: bool, as_json: bool) -> None:
    """Print rendered prompts and token counts. CONFIG is a YAML file or a recipe (default: quickstart)."""
    setup.configs = setup.configs or ("quickstart",)
    resolved = setup.resolve(check=False)
    dataset = setup.host.build("dataset", resolved.plan.dataset.use)
    began, shown, tokens, trained, left_out = time.perf_counter(), list[Shown](), list[int](), list[int](), 0
    for item in islice(_items(resolved, setup, dataset), max(num, count)):
        tokens.append(item.tokens)
        left_out += not item.fits
        if item.trained is not None:
            trained.append(item.trained)
        if len(shown) < num:
            shown.append(item)
    if not tokens:
        raise UsageError("dataset is empty", where=resolved.config.dataset.path)
    report = {
        "dataset": resolved.plan.dataset.ref,
        "size": len(dataset) if hasattr(dataset, "__len__") else None,
        "counted": len(tokens),
        "left_out": left_out,
        "budget": _budget(resolved),
        "tokens": _spread(tokens),
        "trained_tokens": _spread(trained) if trained else None,
        "examples": [attrs.asdict(item) for item in shown],
        "targets": _graded(resolved, setup, islice(dataset, len(tokens))) if grade else None,
        "dropped": dict(getattr(dataset, "dropped", {})),
        "seconds": time.perf_counter() - began,
    }
    if as_json:
        from forge_host.cli.tables import print_json

        print_json(report)
    else:
        _print(report, shown)


def _budget(resolved: Resolved) -> str:
    """Most tokens of a prompt or example, in words."""
    config, plan = resolved.config, resolved.plan
    limit = config.dataset.max_prompt_tokens
    if plan.offline:
        return f"{config.training.seq_len} (training.seq_len)" + (
            f", or the prompt than {limit} (dataset.max_prompt_tokens)" if limit is not None else ""
        )
    from forge_host.loop.prompts import prompt_budget

    budget, response = prompt_budget(config, plan), plan.sampling.max_tokens
    why = f"training.seq_len {config.training.seq_len} less {response} for the response"
    return f"{budget} ({'dataset.max_prompt_tokens' if budget == limit else why})"


def _graded(resolved: Resolved, setup: Setup, prompts: Iterable[Prompt]) -> dict[str, Any]:
    """What the run's rewards say to the right answers: how many are accepted, and ids of the others by reason."""
    from forge_host.loop.scoring import Scorer
    from forge_host.types import Completion

    plan, config = resolved.plan, resolved.config
    if not plan.rewards:
        raise UsageError("there are no rewards to grade with", fix="leave out --grade")
    rewards = [(part.label, setup.host.build("reward", part.use), weight) for part, weight in plan.rewards]
    scorer = Scorer(rewards, mode=config.reward.mode, timeout_s=config.reward.timeout_s, gates=config.reward.gates)
    found: dict[str, list[str]] = {"accepted": [], "not gradable": [], "scored below 1": [], "failed": []}
    why: dict[str, str] = {}

    async def grade(prompt: Prompt) -> Episode:
        answer = str(prompt.metadata.get("response") or prompt.target or "")
        reply = Completion(text=answer, token_ids=(), logprobs=())
        return await scorer.score(prompt, reply, episode_id=prompt.id, max_tokens=plan.sampling.max_tokens)

    async def grade_all() -> None:
        waiting = iter(prompts)
        while chunk := list(islice(waiting, GRADED_AT_ONCE)):
            for episode in await asyncio.gather(*map(grade, chunk)):
                reason = "accepted" if (episode.reward or 0) >= 1 else "scored below 1"
                if episode.reward is None:
                    reason = "failed" if episode.error else "not gradable"
                found[reason].append(episode.id)
                why.setdefault(reason, episode.error or episode.note)

    asyncio.run(grade_all())
    return {
        reason: {"count": len(ids), "first": ids[:10], "why": why.get(reason, "")} for reason, ids in found.items()
    }


def _items(resolved: Resolved, setup: Setup, dataset: Any) -> Iterator[Shown]:
    from forge_host.config.model import resolve_model

    config, plan = resolved.config, resolved.plan
    model_path = resolve_model(config.model, setup.host)()
    if plan.offline:
        from forge_host.loop.sft import example_encoder

        examples = example_encoder(model_path, config)
        for prompt in dataset:
            yield _example(prompt, examples)
        return
    from forge_host.loop.prompts import PromptEncoder, prompt_budget

    encode = PromptEncoder(model_path, system=config.dataset.system, chat=config.dataset.chat)
    budget = prompt_budget(config, plan)
    for prompt in dataset:
        length = len(encode(prompt))
        yield Shown(
            id=prompt.id, text=encode.render(prompt), target=prompt.target, tokens=length, trained=None,
            fits=length <= budget,
        )  # fmt: skip


def _example(prompt: Prompt, encode: Any) -> Shown:
    texts, tokens, trained = [], 0, 0
    for ids, mask in encode.tokens(prompt):
        texts.append("".join(_marked(encode.tokenizer, ids, mask)))
        tokens, trained = tokens + len(ids), trained + sum(mask)
    return Shown(
        id=prompt.id, text="\n".join(texts), target=None, tokens=tokens, trained=trained, fits=bool(encode(prompt))
    )


def _marked(tokenizer: Any, ids: Sequence[int], mask: Sequence[bool]) -> Iterator[str]:
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or mask[end] != mask[start]:
            text = tokenizer.decode(ids[start:end])
            yield f">>>{text}<<<" if mask[start] else text
            start = end


def _spread(values: Sequence[int]) -> dict[str, float]:
    return {"min": min(values), "mean": statistics.fmean(values), "max": max(values), "total": sum(values)}


def _print(report: dict[str, Any], shown: Sequence[Shown]) -> None:
    for item in shown:
        trains = "" if item.trained is None else f", {item.trained} trained on"
        target = "" if item.target is None else f", target {item.target!r}"
        late = "" if item.fits else ", left out as too long"
        print(f"--- {item.id}: {item.tokens} tokens{trains}{target}{late}\n{item.text}")
    tokens, size = report["tokens"], report["size"]
    print(f"\ndataset {report['dataset']}, {'streamed' if size is None else f'{size} prompts'}")
    print(
        f"tokens of the first {report['counted']}: min {tokens['min']}, mean {tokens['mean']:.1f}, "
        f"max {tokens['max']}, total {tokens['total']}; {report['left_out']} left out as longer than {report['budget']}"
    )
    for reason, those in (report["targets"] or {}).items():
        if those["count"]:
            listed = "" if reason == "accepted" else f": {', '.join(those['first'])}"
            listed += f" ({those['why']})" if listed and those["why"] else ""
            print(f"targets {reason}: {those['count']}{listed}")
    if any(report["dropped"].values()):
        print("left out by the dataset: " + ", ".join(f"{n} {reason}" for reason, n in report["dropped"].items() if n))
    if report["trained_tokens"]:
        share = report["trained_tokens"]["total"] / tokens["total"]
        print(f"trained on: {report['trained_tokens']['total']} tokens ({share:.0%})")
