"""Metrics as TensorBoard event files, written without torch and TensorFlow.

tracker = TensorBoard()
tracker.start(RunInfo(id="x", directory="runs/x", config={}))
tracker.log(StepReport(step=1, policy_version=1, time=time.time(), metrics={"reward/mean": 0.5}))
tracker.finish({"status": "done"})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import gt

from forge_host.api import RunInfo, StepReport, field


@attrs.define(kw_only=True)
class TensorBoard:
    """One scalar a metric and step. Values are 32-bit floats, as everywhere in TensorBoard."""

    log_dir: str | None = field(
        default=None, help="folder with a folder of each run's name; null is `tensorboard` in the run directory"
    )
    flush_s: float = field(default=10.0, help="written to disk at least this often", unit="s", validator=gt(0))
    _writer: Any = attrs.field(init=False, default=None)

    def start(self, run: RunInfo) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(self.log_dir) / run.id if self.log_dir else Path(run.directory) / "tensorboard"
        self._writer = EventFileWriter(str(folder), flush_secs=self.flush_s)
        text = json.dumps(run.config, indent=2, default=str)
        self._text("configuration", "\n".join(f"    {line}" for line in text.splitlines()))  # a block of Markdown

    def log(self, report: StepReport) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in report.finite().items()]
        self._writer.add_event(Event(wall_time=report.time, step=report.step, summary=Summary(value=values)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _text(self, name: str, markdown: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
        value = Summary.Value(tag=name, metadata=metadata, tensor=tensor)
        self._writer.add_event(Event(summary=Summary(value=[value])))
