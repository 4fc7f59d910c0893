"""TorchStore's idea of who writes where, for one publisher with one volume beside it.

strategy = OneVolume(TransportType.Unset)
"""

from __future__ import annotations

from torchstore.strategy import TorchStoreStrategy


class OneVolume(TorchStoreStrategy):
    """Every client uses the only volume."""

    @classmethod
    def get_volume_id(cls) -> str:
        return "0"

    @classmethod
    def get_client_id(cls) -> str:
        return "0"
