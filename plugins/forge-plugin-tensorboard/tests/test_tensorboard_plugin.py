"""TensorBoard: the contracts, and files that TensorBoard's own reader understands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forge_plugin_tensorboard.tracker import TensorBoard

from forge_host.api import RunInfo, StepReport
from forge_host.testing import PluginContract, TrackerContract


def read(folder: Path) -> dict[int, dict[str, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    found: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            found.setdefault(event.step, {})[name] = event.value
    return found


class TestPlugin(PluginContract):
    plugin = "tensorboard"


class TestTensorBoard(TrackerContract):
    ref = "tensorboard/tensorboard"
    tolerance = 1e-6

    def logged(self, directory: Path) -> dict[int, dict[str, float]]:
        return read(directory / "tensorboard")


def test_folder_of_several_runs_and_configuration(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(log_dir=str(tmp_path / "tb"))
    tracker.start(RunInfo(id="r1", directory=str(tmp_path), config={"model": "smollm2"}))
    tracker.log(StepReport(step=7, policy_version=7, time=1.7e9, metrics={"reward/mean": 0.5}))
    tracker.finish({})
    assert read(tmp_path / "tb" / "r1") == {7: {"reward/mean": 0.5}}
    events = EventAccumulator(str(tmp_path / "tb" / "r1")).Reload()
    assert events.Tags()["tensors"] == ["configuration"]
    assert b"smollm2" in events.Tensors("configuration")[0].tensor_proto.string_val[0]


def test_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from forge_host.api import RunInfo, StepReport\n"
        "from forge_plugin_tensorboard.tracker import TensorBoard\n"
        "t = TensorBoard()\n"
        f"t.start(RunInfo(id='r', directory={str(tmp_path)!r}, config={{}}))\n"
        "t.log(StepReport(step=1, policy_version=1, time=1.0, metrics={'a': 1.0}))\n"
        "t.finish({})\n"
        "print(*{'torch', 'tensorflow'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "", done.stdout + done.stderr
