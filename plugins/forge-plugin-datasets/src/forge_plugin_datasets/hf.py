"""Opens a Hugging Face dataset: hub name, local folder (also one made by `save_to_disk`), Parquet or JSON file.

    dataset = open_dataset(HuggingFace(path="openai/gsm8k", split="test"))
    len(dataset), dataset[0].target

Streamed it has no length: the host shuffles it through a buffer and resumes by reading up to its position.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from forge_host.api import Prompt, RunError, UsageError
from forge_host.builtin.split import held_out
from forge_plugin_datasets.columns import Columns
from forge_plugin_datasets.config import HuggingFace

#: Subset of a hub dataset that has several, when none is named.
SUBSETS = {"openai/gsm8k": "main", "gsm8k": "main"}
FILES = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
FINGERPRINT_ROWS = 64


@attrs.frozen(kw_only=True)
class Table:
    """A dataset on this machine: sized and indexable."""

    config: HuggingFace
    rows: Any
    columns: Columns
    indices: Sequence[int]  #: of the rows that are prompts
    dropped: Mapping[str, int]  #: rows left out, by reason

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self.indices):
            raise IndexError(index)
        row = self.indices[index]
        return self.columns.prompt(self.rows[row], _id(self.config, row))

    def __iter__(self) -> Iterator[Prompt]:
        return (self[index] for index in range(len(self)))

    def fingerprint(self) -> str:
        """Hash of the settings, the number of rows, and rows spread over the whole; where the copy lies is left out."""
        step = max(1, len(self.rows) // FINGERPRINT_ROWS)
        seen = [json.dumps(self.rows[i], sort_keys=True, default=repr) for i in range(0, len(self.rows), step)]
        return _hash(self.config, "path", len(self.rows), seen)


@attrs.frozen(kw_only=True)
class Stream:
    """A dataset that is read while it is used."""

    config: HuggingFace
    rows: Any
    columns: Columns
    dropped: Mapping[str, int]  #: rows left out the last time it was read, by reason

    def __iter__(self) -> Iterator[Prompt]:
        kept = chosen(self.config, self.columns, _read(self.config, self.rows), self.dropped)
        return (self.columns.prompt(row, _id(self.config, index)) for index, row in kept)

    def fingerprint(self) -> str:
        """Hash of the settings: the rows are not here to be looked at."""
        return _hash(self.config)


def open_dataset(config: HuggingFace) -> Table | Stream:
    """Load it, downloading from the hub if that is where it is.

    Raises:
        UsageError: no such dataset, subset, split or column, a damaged file, or no rows.
        RunError: the hub cannot be reached.
    """
    rows = _load(config)
    first: Mapping[str, Any] | None = next(_read(config, rows), None)
    if first is None:
        raise _empty(config)
    columns = Columns.find(config, first, config.path)
    dropped: dict[str, int] = {}
    if config.streaming:
        return Stream(config=config, rows=rows, columns=columns, dropped=dropped)
    indices: Sequence[int] = range(min(len(rows), config.limit or len(rows)))
    if config.deduplicate or config.holdout:
        indices = array("Q", (index for index, _ in chosen(config, columns, rows, dropped)))
        if not indices:
            raise UsageError(
                f"dataset is empty: none of the {len(rows)} rows of split {config.split} is left "
                f"(holdout {config.holdout:g}, held_out {str(config.held_out).lower()})", where=config.path,
                fix="change holdout",
            )  # fmt: skip
    return Table(config=config, rows=rows, columns=columns, indices=indices, dropped=dropped)


def chosen(
    config: HuggingFace, columns: Columns, rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows that are prompts, with their numbers; those left out are counted in `dropped`."""
    assert isinstance(dropped, dict)
    dropped |= {"other part": 0, "duplicate": 0}
    seen: set[bytes] = set()
    given = 0
    for index, row in enumerate(rows):
        if config.deduplicate or config.holdout:
            text = columns.key(row)
            if held_out(text, config.holdout) != config.held_out:
                dropped["other part"] += 1
                continue
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
            if config.deduplicate and digest in seen:
                dropped["duplicate"] += 1
                continue
            if config.deduplicate:
                seen.add(digest)
        yield index, row
        given += 1
        if given == config.limit:
            return


def _load(config: HuggingFace) -> Any:
    import datasets

    path = Path(config.path).expanduser()
    name = config.name or SUBSETS.get(config.path)
    with _explaining(config):
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return _saved(config, path)
        if path.is_file():
            given: dict[str, Any] = {"path": _kind(path), "data_files": str(path)}
        else:
            given = {"path": str(path) if path.is_dir() else config.path, "name": name, "revision": config.revision}
        return datasets.load_dataset(**given, split=config.split, streaming=config.streaming)


def _read(config: HuggingFace, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows; what goes wrong on the way, in a stream in the middle of a run, is explained as when opening."""
    with _explaining(config):
        yield from rows


@contextmanager
def _explaining(config: HuggingFace) -> Iterator[None]:
    """Turns the errors of the library and of what it reads with into one of ours."""
    import httpx
    import pyarrow
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (DatasetsError, OSError, ValueError, KeyError, pyarrow.ArrowException, httpx.HTTPError) as error:
        raise _explained(config, error) from error


def _explained(config: HuggingFace, error: Exception) -> UsageError | RunError:
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    path, text = Path(config.path).expanduser(), str(error)
    if isinstance(error, DatasetNotFoundError):
        return UsageError(
            f"dataset `{config.path}` is not on the hub, or is private or gated ({_short(error)})",
            fix="check the name; for a gated one accept its terms and set HF_TOKEN; or give a local folder",
        )
    if "corresponds to no data" in text or _has_no_rows(path):
        return _empty(config)
    unreadable = isinstance(error, OSError) and path.exists() and not isinstance(error, FileNotFoundError)
    if unreadable or isinstance(error, DatasetGenerationError):
        cause = error.__cause__ or error
        return UsageError(
            f"the data cannot be read ({_short(cause)})", where=config.path, fix="download or write it again"
        )
    if isinstance(error, (ValueError, FileNotFoundError, KeyError)):
        # Unknown split or subset, damaged file: the library's own sentence says which there are.
        return UsageError(_short(error), where=config.path, fix=_fix(text))
    return RunError(
        f"dataset `{config.path}` is not in the local cache and the hub cannot be reached ({_short(error)})",
        fix="download it where there is a network (`hf download --repo-type dataset --local-dir DIR "
        f"{config.path}`) and set dataset.path: DIR, or name a .jsonl or .parquet file",
    )


def _saved(config: HuggingFace, path: Path) -> Any:
    import datasets

    found = datasets.load_from_disk(str(path))
    if isinstance(found, datasets.DatasetDict):
        if config.split not in found:
            raise UsageError(
                f"there is no split `{config.split}`; the splits are {', '.join(found)}", where=config.path,
                fix="set dataset.split",
            )  # fmt: skip
        found = found[config.split]
    return found.to_iterable_dataset() if config.streaming else found


def _kind(path: Path) -> str:
    """The library's reader of a file, by its suffix; it reads compressed ones as well."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix not in FILES:
        raise UsageError(
            "the file is of a kind that nothing reads", where=str(path), fix=f"known are {', '.join(FILES)}"
        )
    return FILES[suffix]


def _has_no_rows(path: Path) -> bool:
    """Whether it is a Parquet file of columns only, over which the library stumbles."""
    import pyarrow
    from pyarrow.parquet import read_metadata

    try:
        return bool(read_metadata(path).num_rows == 0)
    except (OSError, pyarrow.ArrowException):
        return False


def _empty(config: HuggingFace) -> UsageError:
    return UsageError(
        f"dataset is empty: split {config.split} has no rows", where=config.path, fix="name another file or split"
    )


def _fix(message: str) -> str:
    if "BuilderConfig" in message or "Config name is missing" in message:
        return "set dataset.name"
    if "instruction" in message:
        return "write dataset.split as in train, train[:90%] or train[100:200]"
    return "set dataset.split" if "split" in message.lower() else "check the file and dataset.path"


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".") if len(text) <= 200 else text[:197] + "..."


def _id(config: HuggingFace, index: int) -> str:
    return f"{config.path.rstrip('/').rpartition('/')[2]}:{config.split}:{index}"


def _hash(config: HuggingFace, leave_out: str = "", *more: Any) -> str:
    settings = {name: value for name, value in attrs.asdict(config).items() if name not in (leave_out, "streaming")}
    return hashlib.sha256(repr((sorted(settings.items(), key=str), more)).encode()).hexdigest()
