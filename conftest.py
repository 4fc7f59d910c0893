"""For all test folders: events go where the command line sends them, so `CliRunner`'s stdout is the command's own."""

from forge_host.runtime.logs import to_stderr


def pytest_configure() -> None:
    to_stderr()
