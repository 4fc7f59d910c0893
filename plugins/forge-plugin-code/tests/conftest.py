from __future__ import annotations

import pytest
from forge_plugin_code.isolation import Settings, choose

from forge_host.api import PluginError


@pytest.fixture(params=["bwrap", "namespaces"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Each way to isolate; one that this machine does not have is skipped with the machine's own reason."""
    try:
        return choose(Settings(isolation=request.param))
    except PluginError as error:
        pytest.skip(str(error))
