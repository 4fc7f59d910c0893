"""The pytest plugin behind the `pytest11` entry point: readable assertions in the contracts, the mark `slow`.

    pytest            # prints "forge-host: 0.1.0, plugin API 1.0" in its header

Loaded in every pytest run of an environment with forge-host, so it imports nothing but pytest and two numbers.
"""

from __future__ import annotations

import pytest

from forge_host import API_VERSION, __version__

CONTRACT_MODULES = ("advantage", "component", "evaluate", "loss", "reward", "sampler", "transport")

# pytest rewrites the assertions of plugins that it finds file by file; an editable install lists no files.
pytest.register_assert_rewrite(*(f"forge_host.testing.{name}" for name in CONTRACT_MODULES))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: a contract's test that takes long or needs much memory")


def pytest_report_header() -> str:
    return f"forge-host: {__version__}, plugin API {API_VERSION}"
