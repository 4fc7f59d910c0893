"""The built-in transports keep the contract; what only they promise is tested here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_host.testing import TransportContract


class TestSharedMemory(TransportContract):
    transport = "builtin/shm"


class TestFiles(TransportContract):
    transport = "builtin/file"

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"directory": str(tmp_path)}
