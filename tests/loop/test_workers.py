"""Worker threads of plain functions: reused when idle, left alone when stuck."""

import asyncio
import subprocess
import sys
import threading

import pytest

from forge_host.loop.workers import Workers


def test_an_idle_thread_takes_the_next_call_and_a_stuck_one_none() -> None:
    release, workers = threading.Event(), Workers()

    async def main() -> None:
        first = await workers.run(threading.get_ident, "a")
        assert await workers.run(threading.get_ident, "b") == first
        stuck = workers.run(lambda: release.wait(30) and threading.get_ident(), "c")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stuck), 0.05)
        second = await workers.run(threading.get_ident, "d")
        assert second != first, "a call never waits behind a stuck one"
        release.set()
        assert await stuck == first

    asyncio.run(main())


def test_threads_are_named_by_what_they_run() -> None:
    workers = Workers()

    async def main() -> None:
        assert await workers.run(lambda: threading.current_thread().name, "reward `math`") == "forge reward `math`"

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), StopIteration(3), SystemExit(4)])
def test_what_a_call_raises_is_handed_over_and_its_thread_goes_on(error: BaseException) -> None:
    workers = Workers()

    def fails() -> None:
        raise error

    async def main() -> None:
        future = workers.run(fails, "a")
        await asyncio.wait({future})
        raised = future.exception()
        assert raised is error or (isinstance(raised, RuntimeError) and type(error).__name__ in str(raised))
        assert await workers.run(lambda: 5, "b") == 5

    asyncio.run(main())


def test_a_stuck_call_does_not_keep_python_alive() -> None:
    code = (
        "import asyncio, threading\nfrom forge_host.loop.workers import Workers\n"
        "async def main():\n    Workers().run(threading.Event().wait, 'a')\n    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)  # it would wait for ever
