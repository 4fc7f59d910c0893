"""Logs of remote processes: structured, with run, role, rank and step, whatever a library logs with."""

import json
import logging

import structlog
from monarch.actor import endpoint

from forge_host.runtime.actor import ForgeActor
from forge_host.runtime.logs import configure, note_step
from forge_host.runtime.session import Session


class Talker(ForgeActor):
    @endpoint
    async def talk(self) -> None:
        own = logging.getLogger("library.with.own.handler")
        own.propagate = False
        own.setLevel(logging.INFO)
        own.addHandler(logging.NullHandler())
        own.info("loaded %d tensors", 3)
        trace = logging.getLogger("library.trace.that.is.off")
        trace.propagate = False
        trace.warning("a trace warns")
        trace.info("a trace goes on")
        logging.getLogger("plain").warning("%d is no %s", "wrong")
        structlog.get_logger().info("hello", size=7)
        try:
            raise KeyError("lost")
        except KeyError:
            logging.getLogger("plain").exception("it failed")
        print("raw", flush=True)


async def test_every_log_line_of_every_rank_has_run_role_rank_and_step(tmp_path) -> None:
    folder = tmp_path / "run-7" / "logs"
    folder.mkdir(parents=True)
    note_step(str(folder), 12)
    async with Session(log_dir=str(folder)):
        talker = await Talker.options(procs=2, mesh_name="talker").as_actor()
        await talker.talk.call()
        note_step(str(folder), 9)
        await talker.talk.call()
    for rank in range(2):
        lines = [json.loads(line) for line in (folder / f"talker-0.{rank}.jsonl").read_text().splitlines()]
        said = [line for line in lines if line["event"] in ("loaded 3 tensors", "hello", "it failed")]
        assert len(said) == 6 and [line["step"] for line in said] == [12] * 3 + [9] * 3
        wanted = {"run": "run-7", "role": "talker", "rank": rank, "mesh": "talker-0"}
        assert all(wanted.items() <= line.items() and line["timestamp"] and line["pid"] for line in lines)
        assert said[0]["logger"] == "library.with.own.handler" and said[0]["level"] == "info"
        assert said[1]["size"] == 7 and "KeyError: 'lost'" in said[2]["exception"]
        assert any(line["event"].startswith("%d is no %s (TypeError") for line in lines), "a wrong format string"
        assert [line["event"] for line in lines if "trace" in line["event"]] == ["a trace warns"] * 2
        text = (folder / f"talker-0.{rank}.log").read_text()
        assert "raw" in text and "info: hello size=7" in text


def test_a_log_that_cannot_be_written_is_said_once(tmp_path, capsys) -> None:
    before = structlog.get_config(), logging.getLogRecordFactory()
    try:
        configure(str(tmp_path / "missing"), "x", run="r")
        for _ in range(3):
            structlog.get_logger().info("lost")
        structlog.get_logger().warning("still here", a=1)
    finally:
        structlog.configure(**before[0])
        logging.setLogRecordFactory(before[1])
    err = capsys.readouterr().err
    assert err.count("cannot be written: No such file or directory") == 1 and "warning: still here a=1" in err
