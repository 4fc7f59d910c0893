"""What SAPO owes: contracts."""

from __future__ import annotations

from forge_host.testing import LossContract, PluginContract


class TestPlugin(PluginContract):
    plugin = "sapo"


class TestSAPOLoss(LossContract):
    ref = "sapo/sapo"
    aggregation = "sequence-mean"
