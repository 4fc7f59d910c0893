"""Does the tokenizer belong to the model? Said from the folder's JSON files before any process starts.

    check_vocabulary("/models/SmolLM2")

A token that the model has no embedding for would fail at the first batch that holds it, minutes after the start or
hours. The other way round is usual: models pad their vocabulary beyond the tokenizer's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from forge_host.errors import UsageError

log = structlog.get_logger()
FIX = "take the tokenizer that the model was saved with, or resize the model's embeddings and save it again"


def check_vocabulary(model_path: str) -> None:
    """Compare the token ids of `tokenizer.json` with the embeddings that `config.json` says the model has.

    Added tokens that no text and no turn of a chat has to contain (an image's place, a padding token) may lie outside:
    that is a warning. A folder without these files or without a number of embeddings is passed over.

    Raises:
        UsageError: a token of the vocabulary or one that ends or begins a text has no embedding.
    """
    folder = Path(model_path)
    config = _read(folder / "config.json")
    size = config.get("vocab_size", _mapping(config.get("text_config")).get("vocab_size"))
    if not isinstance(size, int):
        return
    tokenizer = _read(folder / "tokenizer.json")
    added = {t["content"]: t["id"] for t in tokenizer.get("added_tokens") or [] if isinstance(t.get("id"), int)}
    ids = {name: i for name, i in _vocabulary(tokenizer) if name not in added}
    needed = ids | {name: i for name, i in added.items() if name in _markers(folder)}
    beyond = {name: i for name, i in needed.items() if i >= size}
    for key in ("bos_token_id", "eos_token_id"):
        beyond |= {f"{key} of config.json": i for i in _numbers(config.get(key)) if i >= size}
    if beyond:
        name, highest = max(beyond.items(), key=lambda item: item[1])
        raise UsageError(
            f"tokenizer and model do not belong together: the model has {size} embeddings and {len(beyond)} tokens lie "
            f"beyond them, the last one {highest} ({name!r})",
            where=model_path, fix=FIX,
        )  # fmt: skip
    unused = {name: i for name, i in added.items() if i >= size}
    if unused:
        log.warning("added tokens have no embedding; a text with one of them fails", model=model_path, tokens=unused)


def _read(path: Path) -> dict[str, Any]:
    """A JSON file; {} when it is not there. What does not parse is left to what loads it, which says more."""
    try:
        return _mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _vocabulary(tokenizer: dict[str, Any]) -> Iterable[tuple[str, int]]:
    """Tokens and ids of a `tokenizer.json`: a mapping, or for Unigram models a list of [token, score]."""
    vocab = _mapping(tokenizer.get("model")).get("vocab") or {}
    if isinstance(vocab, dict):
        return vocab.items()
    return ((entry[0], i) for i, entry in enumerate(vocab))


def _markers(folder: Path) -> set[str]:
    """Tokens that begin or end a text."""
    config = _read(folder / "tokenizer_config.json")
    named = (config.get(key) for key in ("bos_token", "eos_token"))
    return {name if isinstance(name, str) else str(_mapping(name).get("content")) for name in named if name}


def _numbers(value: Any) -> list[int]:
    return [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
