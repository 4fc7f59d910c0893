"""For all test folders: events go where the command line sends them, so `CliRunner`'s stdout is the command's own; and
the order of files."""

import pytest

from forge_host.runtime.logs import to_stderr


def pytest_configure() -> None:
    to_stderr()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, end to end before all, so that processes that share the files end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: ("e2e" not in item.path.parts, item.path not in slow))
