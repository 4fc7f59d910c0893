"""Weights through safetensors files in a folder that trainer and generators share; works between hosts.

    sender, reader = Files(directory="/shared/sync"), Files(directory="/shared/sync")
    sender.open("run-1")
    receipt = sender.publish(1, model.state_dict().items())
    for name, tensor in reader.fetch(receipt):
        parameters[name].copy_(tensor)

A version is written beside its place, synced to the disk and renamed: a reader sees the whole file or none. The newest
two versions stay. A reader maps the file, so removing it takes nothing from a reader on the same host; a reader on
another host of an NFS mount has to be done before the version after the next one is published, which the host's loop
sees to. A process that was killed leaves its files; the next publisher on that host in the same folder removes them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from forge_host.api import Capabilities, Receipt, field
from forge_host.errors import RunError
from forge_host.loop.checksum import tensor_digest

if TYPE_CHECKING:
    import torch

OWNER = "owner.json"  #: who writes into a folder: its presence marks the folder as ours, to be removed when it is dead


@attrs.define(kw_only=True)
class Files:
    """The transport `file`."""

    directory: str = field(
        default="", help="folder that trainer and generators see; empty is forge-host-sync in the temporary folder"
    )
    capabilities: Capabilities = attrs.field(
        default=Capabilities(cross_host=True, resharding=True, partial=True), init=False
    )
    _namespace: str = attrs.field(default="", init=False)
    _files: dict[int, Path] = attrs.field(factory=dict, init=False)
    _version: int | None = attrs.field(default=None, init=False)

    def open(self, namespace: str) -> None:
        self._namespace = namespace.replace(os.sep, "-")

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, checksums: bool = False) -> Receipt:
        """Write one version. Tensors on a GPU are copied to the host first, all of them at once.

        Raises:
            ValueError: the version is not newer than the last, or a name comes twice.
            RunError: the folder cannot be written, or its disk is full.
        """
        if self._version is not None and version <= self._version:
            raise ValueError(f"version {version} was published after {self._version}")
        held: dict[str, torch.Tensor] = {}
        storages: set[int] = set()
        for name, tensor in tensors:
            if name in held:
                raise ValueError(f"tensor {name!r} comes twice")
            plain = tensor.detach().cpu().contiguous()
            if plain.nbytes and plain.untyped_storage().data_ptr() in storages:
                plain = plain.clone()  # the format refuses tensors that share memory
            storages.add(plain.untyped_storage().data_ptr())
            held[name] = plain
        digests = {name: tensor_digest(tensor) for name, tensor in held.items()} if checksums else None
        try:
            path = self._write(version, held)
        except OSError as error:
            raise RunError(
                f"version {version} of the weights ({sum(t.nbytes for t in held.values()) / 1e6:.0f} MB) "
                f"cannot be written: {error.strerror or error}",
                where=str(self._folder()),
                fix="set transport.directory to a writable folder with room for three versions",
            ) from error
        self._files[version], self._version = path, version
        for old in sorted(self._files)[:-2]:
            self._files.pop(old).unlink(missing_ok=True)
        return Receipt(
            version=version,
            num_tensors=len(held),
            num_bytes=sum(tensor.nbytes for tensor in held.values()),
            location={"path": str(path)},
            checksums=digests,
        )

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        """The receipt's tensors, mapped from the file.

        Raises:
            RunError: the file is gone, or is not what was published.
        """
        from safetensors import SafetensorError, safe_open

        path = receipt.location["path"]
        try:
            held = safe_open(path, framework="pt")
        except FileNotFoundError as error:
            raise RunError(
                f"version {receipt.version} of the weights is gone; only the newest two are kept, "
                "and the folder has to be visible on every host",
                where=path, fix="set transport.directory to a folder that trainer and generators share",
            ) from error  # fmt: skip
        except (SafetensorError, OSError) as error:
            raise RunError(f"version {receipt.version} of the weights cannot be read: {error}", where=path) from error
        return self._tensors(receipt, held)

    def close(self) -> None:
        """Remove this process's files, and the folder when it is empty."""
        if self._files:
            shutil.rmtree(self._folder(), ignore_errors=True)
            self._files.clear()

    @staticmethod
    def _tensors(receipt: Receipt, held: Any) -> Iterator[tuple[str, torch.Tensor]]:
        with held as file:
            names = list(file.keys())
            metadata = file.metadata() or {}
            if metadata.get("version") != str(receipt.version) or len(names) != receipt.num_tensors:
                raise RunError(
                    f"the file holds version {metadata.get('version')} with {len(names)} tensors instead of version "
                    f"{receipt.version} with {receipt.num_tensors}", where=receipt.location["path"],
                    fix="let no two runs use one folder and name",
                )  # fmt: skip
            for name in names:
                yield name, file.get_tensor(name)

    def _folder(self) -> Path:
        root = Path(self.directory) if self.directory else Path(tempfile.gettempdir()) / "forge-host-sync"
        return root / (self._namespace or "weights")

    def _write(self, version: int, held: dict[str, torch.Tensor]) -> Path:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        folder = self._folder()
        if not self._files:
            _sweep(folder.parent)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / OWNER).write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        path = folder / f"v{version:08d}.safetensors"
        partial = path.with_suffix(f".partial-{os.getpid()}")
        try:
            save_file(held, partial, metadata={"version": str(version)})
            _sync(partial)
            partial.rename(path)
            _sync(folder)
        except SafetensorError as error:
            partial.unlink(missing_ok=True)
            raise OSError(str(error)) from error
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return path


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(root: Path) -> None:
    """Remove the folders of publishers of this host that no longer run."""
    for note in root.glob(f"*/{OWNER}"):
        try:
            owner = json.loads(note.read_text())
            dead = owner["host"] == socket.gethostname() and not Path(f"/proc/{owner['pid']}").exists()
        except (OSError, ValueError, KeyError):
            continue  # being written or removed by another run
        if dead:
            shutil.rmtree(note.parent, ignore_errors=True)
