"""The plugin and its rewards, held to the contracts."""

from __future__ import annotations

from forge_host.testing import PluginContract, RewardContract


class TestPlugin(PluginContract):
    plugin = "math"


class TestMath(RewardContract):
    reward = "math"
    accept = [("so 19", "19"), (r"\boxed{19.0}", "#### 19"), ("<answer>$19</answer>", "19"), ("1,900 eggs", "1900")]
    reject = [("so 119", "19"), ("", "19"), ("1 9", "19"), ("<answer>12 + 7</answer>", "19"), ("18", "19")]


class TestMathStrict(RewardContract):
    reward = "math/math"
    config = {"strict": True}
    accept = [(r"\boxed{19.0}", "#### 19"), ("<answer>19</answer>", "19")]
    reject = [("so 19", "19"), ("<answer>19 eggs</answer>", "19"), ("<answer>18</answer><answer>19</answer>", "19")]


class TestTorchforge(RewardContract):
    reward = "math"
    config = {"compat": "torchforge"}
    accept = [("<answer>19</answer>", "19")]
    reject = [("19", "19"), ("<answer>18</answer>", "19")]


class TestThinking(RewardContract):
    reward = "thinking"
    accept = [("<think>12 and 7</think>19", None)]
    reject = [("19", None), ("<think></think>19", None)]


class TestFormat(RewardContract):
    reward = "format"
    accept = [("<think>12 and 7</think><answer>19</answer>", None)]
    reject = [("<answer>19</answer>", None), ("<think></think><answer>19</answer>", None)]
