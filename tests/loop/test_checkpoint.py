"""A checkpoint is whole or it is not one."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from forge_host.errors import RunError
from forge_host.loop.checkpoint import Writer, newest, save


async def write(run_dir: Path, step: int, keep: int = 2) -> Path:
    async def trainer(path: str) -> None:
        (Path(path) / "weights.bin").write_bytes(bytes([step]) * 10_000)

    return await save(run_dir, {"step": step}, "{}", trainer, keep)


async def test_the_newest_is_used_and_old_ones_go(tmp_path) -> None:
    for step in (1, 2, 3):
        await write(tmp_path, step)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000002", "step-000003"]
    assert newest(tmp_path).state == {"step": 3}


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "unfinished", "manifest"])
async def test_a_damaged_one_is_passed_over(tmp_path, harm: str, capsys) -> None:
    await write(tmp_path, 1)
    path = await write(tmp_path, 2)
    file = path / "trainer" / "weights.bin"
    if harm == "truncate":
        file.write_bytes(file.read_bytes()[:-1])
    elif harm == "flip":
        data = bytearray(file.read_bytes())
        data[77] ^= 1
        file.write_bytes(data)
    elif harm == "remove":
        file.unlink()
    elif harm == "unfinished":
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text("{")
    assert newest(tmp_path).state == {"step": 1}


async def test_none_at_all(tmp_path) -> None:
    assert newest(tmp_path) is None


async def test_a_failed_write_leaves_the_old_one(tmp_path) -> None:
    await write(tmp_path, 1)

    async def full(path: str) -> None:
        (Path(path) / "weights.bin").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="could not be written: No space left on device"):
        await save(tmp_path, {"step": 2}, "{}", full, 2)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    assert newest(tmp_path).state == {"step": 1}


class SlowTrainer:
    """Has copied its state at once, and has written it when it is let."""

    def __init__(self) -> None:
        self.let, self.fails, self.folder = asyncio.Event(), False, Path()
        self.snapshot, self.written = SimpleNamespace(call=self._snapshot), SimpleNamespace(call=self._written)

    async def _snapshot(self, path: str) -> None:
        self.folder = Path(path)

    async def _written(self) -> None:
        await self.let.wait()
        if self.fails:
            raise RunError("the training state could not be written: No space left on device")
        (self.folder / "weights.bin").write_bytes(b"w" * 1000)


async def test_a_checkpoint_is_written_while_training_goes_on(tmp_path) -> None:
    trainer, told = SlowTrainer(), []
    writer = Writer(tmp_path, "{}", 2, trainer, True, lambda step, path: told.append((step, Path(path).name)))
    await writer.begin({"step": 1})
    writer.check()
    assert newest(tmp_path) is None and told == [], "copied, not written yet"
    trainer.let.set()
    await writer.begin({"step": 2})
    assert told[:1] == [(1, "step-000001")], "one at a time"
    await writer.wait()
    assert newest(tmp_path).state == {"step": 2}


async def test_a_failure_in_the_background_is_told(tmp_path) -> None:
    trainer = SlowTrainer()
    trainer.fails = True
    writer = Writer(tmp_path, "{}", 2, trainer, True, lambda step, path: None)
    await writer.begin({"step": 1})
    trainer.let.set()
    with pytest.raises(RunError, match="could not be written: No space left"):
        await writer.wait()
    writer.check()
    assert newest(tmp_path) is None and not list((tmp_path / "checkpoints").iterdir())
