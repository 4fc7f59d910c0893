"""`jsonl`: prompts from a file with one JSON object a line, of any size.

Why: the first read checks every line and keeps 16 bytes for each (offset and line number), the text stays on disk. So a
million lines fit, a bad line is reported before anything starts, and any prompt is reached by its index.

    dataset = JsonLines(path="gsm8k/train.jsonl", holdout=0.05)
    len(dataset), dataset[3].target
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import and_, ge, gt, in_, lt, optional

from forge_host.api import Prompt, UsageError, field
from forge_host.builtin.split import SPLITS, held_out
from forge_host.builtin.turns import turn

PROMPT_FIELDS = ("prompt", "question", "problem", "messages", "conversations")
TARGET_FIELDS = ("target", "answer", "solution")
BOM = b"\xef\xbb\xbf"
#: How files begin that are no UTF-8 text, what they are, and what to do with them.
FOREIGN = {
    b"\x1f\x8b": ("compressed by gzip", "name it .jsonl.gz, or gunzip it"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "decompress it: unzstd FILE"),
    b"PK\x03\x04": ("a zip archive", "unzip it"),
    b"\xff\xfe": ("UTF-16 text", "rewrite it: iconv -f utf-16 -t utf-8 FILE"),
    b"\xfe\xff": ("UTF-16 text", "rewrite it: iconv -f utf-16 -t utf-8 FILE"),
    b"PAR1": ("a Parquet file", "name it .parquet"),
}
#: JSON can spell half of a character, which no tokenizer and no file takes.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_MEND = "correct or remove the line"
_FORM = "write one whole JSON object on each line; a file that is one JSON list is named .json"


@attrs.frozen
class _Index:
    """What the first read found. `dropped` counts lines left out, by reason."""

    prompt_field: str
    target_field: str | None
    offsets: array[int]
    lines: array[int]
    dropped: Mapping[str, int]
    sha256: str


@attrs.frozen(kw_only=True)
class JsonLines:
    """Prompts of a JSON Lines file. Sized and indexable; fields that are neither prompt nor target become metadata."""

    path: str = field(help="the .jsonl file")
    prompt_field: str | None = field(
        default=None, help=f"field of the prompt, text or messages; null takes the first of {', '.join(PROMPT_FIELDS)}"
    )
    target_field: str | None = field(
        default=None, help=f"field of the right answer; null takes the first of {', '.join(TARGET_FIELDS)}, or none"
    )
    template: str = field(default="{prompt}", help="text put around every text prompt, which replaces {prompt}")
    split: str = field(default="train", help="train or test, the held-out lines", validator=in_(SPLITS))
    holdout: float = field(default=0.0, help="fraction of prompts held out, by hash", validator=and_(ge(0), lt(1)))
    limit: int | None = field(default=None, help="use only so many prompts of the split", validator=optional(gt(0)))
    deduplicate: bool = field(default=False, help="leave out lines whose prompt was there before")
    streaming: bool = field(default=True, help="read prompts from disk when needed; false keeps them in memory")

    def __attrs_post_init__(self) -> None:
        if "{prompt}" not in self.template:
            raise UsageError(f"dataset `jsonl`: template {self.template!r} has no {{prompt}}")
        if self.split == "test" and self.holdout == 0:
            raise UsageError("dataset `jsonl`: split test is empty with holdout 0", fix="set holdout, say to 0.05")

    def __len__(self) -> int:
        return len(self._index.offsets)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._in_memory[index] if not self.streaming else self._read(index)

    def __iter__(self) -> Iterator[Prompt]:
        return (self[index] for index in range(len(self)))

    def fingerprint(self) -> str:
        """Hash of the file's content and of every field but the path."""
        fields = attrs.asdict(self, filter=attrs.filters.exclude("path", "streaming"))
        return hashlib.sha256(f"{self._index.sha256} {sorted(fields.items())!r}".encode()).hexdigest()

    @property
    def dropped(self) -> Mapping[str, int]:
        """Lines left out, by reason: "other split", "duplicate", "over limit"."""
        return self._index.dropped

    @cached_property
    def _index(self) -> _Index:
        return self._scan()

    @cached_property
    def _in_memory(self) -> list[Prompt]:
        return [self._read(index) for index in range(len(self))]

    def _read(self, index: int) -> Prompt:
        with self._open() as file:
            file.seek(self._index.offsets[index])
            line = file.readline()
        number = self._index.lines[index]
        record = self._parse(line, number)
        return self._prompt(record, number, self._index.prompt_field, self._index.target_field)

    def _open(self) -> Any:
        try:
            return Path(self.path).expanduser().open("rb")
        except OSError as error:
            raise UsageError(
                f"dataset file cannot be read ({error.strerror})", where=self.path, fix="check the path"
            ) from error

    def _scan(self) -> _Index:
        """Reads the file once: checks each line, hashes the content, notes where the split's lines begin."""
        digest, offsets, lines = hashlib.sha256(), array("Q"), array("Q")
        dropped = {"other split": 0, "duplicate": 0, "over limit": 0}
        prompt_field, target_field, seen, offset = self.prompt_field, self.target_field, set[bytes](), 0
        with self._open() as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                start, offset = offset, offset + len(line)
                if not line.strip():
                    continue
                record = self._parse(line, number)
                if prompt_field is None:  # the first line decides
                    prompt_field = self._detect(record, number)
                    target_field = self.target_field or next((f for f in TARGET_FIELDS if f in record), None)
                prompt = self._prompt(record, number, prompt_field, target_field)
                text = prompt.text if prompt.text is not None else json.dumps(prompt.messages)
                if self.deduplicate:
                    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
                if held_out(text, self.holdout) != (self.split == "test"):
                    dropped["other split"] += 1
                elif self.deduplicate and key in seen:
                    dropped["duplicate"] += 1
                elif self.limit is not None and len(offsets) >= self.limit:
                    dropped["over limit"] += 1
                else:
                    offsets.append(start)
                    lines.append(number)
                    if self.deduplicate:
                        seen.add(key)
        if not offsets:
            found = sum(dropped.values())
            reason = f"none of its {found} prompts falls into split {self.split}" if found else "it has no prompts"
            raise UsageError(f"dataset is empty: {reason}", where=self.path)
        assert prompt_field is not None
        return _Index(prompt_field, target_field, offsets, lines, dropped, digest.hexdigest())

    def _parse(self, line: bytes, number: int) -> Mapping[str, Any]:
        where, fix = f"{self.path}:{number}", _FORM if number == 1 else _MEND
        if number == 1:
            line = line.removeprefix(BOM)
            for magic, (what, remedy) in FOREIGN.items():
                if line.startswith(magic):
                    raise UsageError(f"dataset file is {what}, not lines of JSON", where=self.path, fix=remedy)
        try:
            record = json.loads(line.decode())
            if _HALF.search(line):
                json.dumps(record, ensure_ascii=False).encode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"line is not UTF-8 (byte {error.start + 1})", where=where,
                fix="rewrite the file, if it is Latin-1 with iconv -f latin1 -t utf-8 FILE",
            ) from error  # fmt: skip
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise UsageError(
                f"line has the lone surrogate {half!a}, which is no character", where=where, fix=_MEND
            ) from error
        except json.JSONDecodeError as error:
            raise UsageError(f"line is not JSON ({error.msg}, column {error.colno})", where=where, fix=fix) from error
        except ValueError as error:  # a whole number of thousands of digits
            raise UsageError(f"line has a number that is too long ({error})", where=where, fix=_MEND) from error
        except RecursionError as error:
            raise UsageError("line is nested too deeply", where=where, fix=_MEND) from error
        if not isinstance(record, dict):
            raise UsageError(f"line is {_kind(record)}, not a JSON object", where=where, fix=fix)
        return record

    def _detect(self, record: Mapping[str, Any], number: int) -> str:
        for name in PROMPT_FIELDS:
            if name in record:
                return name
        raise UsageError(
            f"no prompt field (none of {', '.join(PROMPT_FIELDS)}); the line has {_names(record)}",
            where=f"{self.path}:{number}",
            fix="set dataset.prompt_field"
            + (", or read Alpaca's form with `path: sft/chats` and `file`" if "instruction" in record else ""),
        )

    def _prompt(self, record: Mapping[str, Any], number: int, prompt_field: str, target_field: str | None) -> Prompt:
        where = f"{self.path}:{number}"
        for name in (prompt_field, target_field):
            if name is not None and name not in record:
                fix = _MEND if name not in (self.prompt_field, self.target_field) else f"{_MEND}, or name another field"
                raise UsageError(f"field `{name}` is missing; the line has {_names(record)}", where=where, fix=fix)
        value = record[prompt_field]
        text: str | None = None
        messages: tuple[Mapping[str, Any], ...] | None = None
        if isinstance(value, str) and value.strip():
            text = self.template.replace("{prompt}", value)
        elif isinstance(value, list) and value:
            messages = tuple(turn(m, where, prompt_field) for m in value)
        else:
            raise UsageError(
                f"field `{prompt_field}` is {_kind(value)}, not text or messages", where=where, fix=_MEND
            )
        target = record[target_field] if target_field else None
        if isinstance(target, (int, float)) and not isinstance(target, bool) and not _infinite(target):
            target = str(target)
        if target is not None and not isinstance(target, str):
            raise UsageError(
                f"field `{target_field}` is {_kind(target)}, not text or a number", where=where,
                fix=f"{_MEND}, or name another field as target_field",
            )  # fmt: skip
        metadata = {k: v for k, v in record.items() if k not in (prompt_field, target_field)}
        identity = f"{os.path.basename(self.path)}:{number}"
        return Prompt(id=identity, text=text, messages=messages, target=target, metadata=metadata)


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in record) or "no fields"


def _infinite(value: Any) -> bool:
    """Whether it is NaN or an infinity, which Python's JSON knows and nobody can grade against."""
    return isinstance(value, float) and not math.isfinite(value)


def _kind(value: Any) -> str:
    if value in ("", []) or (isinstance(value, str) and not value.strip()):
        return "empty"
    if _infinite(value):
        return str(value)
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")
