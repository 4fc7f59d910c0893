"""`model:` to a local Hugging Face folder: a model component, a local folder, or a hub name downloaded at run time.

    locate = resolve_model("smollm2", host)
    path = locate()          # only now is anything built or downloaded

The name is checked when the plan is made, so that a missing folder is an error before any process starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forge_host.config.paths import absolute_ref, find_path
from forge_host.config.plan import Part
from forge_host.config.sections import names_plugin, part_of
from forge_host.config.source import Source
from forge_host.errors import PluginError, RunError, UsageError
from forge_host.types import Use

if TYPE_CHECKING:
    from forge_host.plugins import PluginHost


def resolve_model(name: str, host: PluginHost, source: Source | None = None) -> Callable[[], str]:
    """A function that gives the local folder of model `name`. Checks the name; downloads and builds nothing yet.

    Raises:
        UsageError: a path without a Hugging Face model in it, or a name that is nothing known.
    """
    part = model_part(name, host, source)
    if part.origin == "hub":
        return lambda: _download(name)
    if part.origin == "folder":
        return lambda: part.use.ref
    return lambda: _build(part, host)


def model_part(name: str, host: PluginHost, source: Source | None = None) -> Part:
    """The model as part of a plan; `origin` is "folder", "hub", or the distribution of a component."""
    where = source.where if source and source.layer != "default" else None
    found = find_path(name, source)
    if name[:1] in "./~" and ".py:" not in name or (found is not None and found.is_dir()):
        return _folder(name, found, where)
    try:
        entry = host.find("model", absolute_ref(name, source))
    except PluginError:
        if names_plugin(host, "model", name):
            raise
        if name.count("/") == 1 and all(name.split("/")):
            return Part(kind="model", name=name, plugin="", use=Use(name), origin="hub")
        known = ", ".join(f"`{entry.ref}`" for entry in host.entries("model")) or "none is loaded"
        raise UsageError(
            f"model `{name}` is no folder here, no hub name (owner/name) and no model component ({known})", where=where,
            fix="write ./folder, owner/name or a component's name",
        ) from None  # fmt: skip
    return part_of(entry, {})


def _folder(name: str, found: Path | None, where: str | None) -> Part:
    if found is None:
        raise UsageError(
            f"model folder {name} does not exist", where=where,
            fix="give a local Hugging Face folder, a hub name (owner/name) or a model component",
        )  # fmt: skip
    if not (found / "config.json").is_file():
        raise UsageError(
            f"model folder {name} has no config.json", where=where,
            fix="give a Hugging Face model folder (config.json, tokenizer, *.safetensors)",
        )  # fmt: skip
    path = str(found.resolve())
    return Part(kind="model", name=path, plugin="", use=Use(path), origin="folder")


def _build(part: Part, host: PluginHost) -> str:
    source = host.build("model", part.use)
    return str(source.local_path())


def _download(name: str) -> str:
    local = "download it elsewhere and give the local folder: model: ./folder"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise UsageError(
            f"model `{name}` is a hub name and huggingface_hub is not installed ({error})",
            fix="pip install huggingface_hub, or give a local folder",
        ) from None
    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return str(snapshot_download(name, allow_patterns=patterns))
    except RepositoryNotFoundError:
        raise UsageError(
            f"model `{name}` is not on the hub, or is private or gated",
            fix="check the name; for a gated model accept its licence and set HF_TOKEN; or give a local folder",
        ) from None
    except LocalEntryNotFoundError:
        raise RunError(f"model `{name}` is not in the local cache and the hub cannot be reached", fix=local) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunError(f"model `{name}` could not be downloaded ({reason})", fix=local) from None
