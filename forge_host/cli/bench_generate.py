"""`forge-host bench generate`: what the host adds to generation, against the engine alone in the same run.

forge-host bench generate --model /models/SmolLM2 --sequences 32 --tokens 96
"""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--model", required=True, metavar="FOLDER", help="Local Hugging Face folder.")
@click.option("--generator", default="vllm", show_default=True, help="Generator component.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A key of the generator's section.")
@click.option("--sequences", default=32, show_default=True, type=click.IntRange(1), help="Responses in flight.")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(1), help="Tokens of each response.")
@click.option("--prompt-tokens", default=64, show_default=True, type=click.IntRange(1), help="Tokens of each prompt.")
@click.option("-n", "n", default=8, show_default=True, type=click.IntRange(1), help="Responses to a prompt.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Rounds; medians count.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, with `ratio`.")
def generate(
    model: str,
    generator: str,
    settings: tuple[str, ...],
    sequences: int,
    tokens: int,
    prompt_tokens: int,
    n: int,
    repeats: int,
    as_json: bool,
) -> None:
    """Generate inside the host and with the engine alone, taking turns."""
    import attrs
    import yaml

    from forge_host.loop.bench_generate import bench_generate

    given = {}
    for item in settings:
        key, sign, value = item.partition("=")
        if not sign:
            raise click.UsageError(f"--set {item}: write KEY=VALUE")
        given[key] = yaml.safe_load(value)
    found = bench_generate(
        model, generator=generator, settings=given, sequences=sequences, tokens=tokens, prompt_tokens=prompt_tokens,
        n=n, repeats=repeats,
    )  # fmt: skip
    click.echo(json.dumps(attrs.asdict(found)) if as_json else str(found))
