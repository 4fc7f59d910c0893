"""Call by name: what a component's signature asks for."""

from __future__ import annotations

import attrs
import pytest

from forge_host.api import LOSS_ARGUMENTS
from forge_host.errors import PluginError
from forge_host.plugins import CallByName

KNOWN = ("logprobs", "advantages", "padding_mask")
VALUES = {"logprobs": 1, "advantages": 10, "padding_mask": 100}


def test_passes_only_what_is_named():
    call = CallByName(lambda advantages, logprobs: logprobs + advantages, KNOWN, "loss `x`")
    assert call.names == {"logprobs", "advantages"}
    assert call(**VALUES) == 11


def test_kwargs_get_everything_and_defaults_stay():
    def loss(logprobs, scale=2, **rest):
        return logprobs * scale, rest

    call = CallByName(loss, KNOWN, "loss `x`")
    assert call.names == set(KNOWN)
    assert call(**VALUES) == (2, {"advantages": 10, "padding_mask": 100})


def test_known_argument_with_a_default_is_passed_when_there():
    call = CallByName(lambda logprobs=5: logprobs, KNOWN, "loss `x`")
    assert call(**VALUES) == 1
    assert call() == 5


def test_attrs_class():
    @attrs.frozen
    class Loss:
        beta: int = 3

        def __call__(self, logprobs):
            return logprobs * self.beta

    assert CallByName(Loss(), KNOWN, "loss `x`")(**VALUES) == 3


def test_module_is_asked_by_its_forward():
    torch = pytest.importorskip("torch")

    class Loss(torch.nn.Module):
        def forward(self, logprobs, advantages):
            return logprobs - advantages

    seen = []
    module = Loss()
    module.register_forward_hook(lambda *_: seen.append("hook"))
    call = CallByName(module, KNOWN, "loss `x`")
    assert call.names == {"logprobs", "advantages"}
    assert call(**VALUES) == -9
    assert seen == ["hook"]  # called as a module, not around it


def test_unknown_tensor_is_an_error_that_lists_the_known():
    with pytest.raises(PluginError) as error:
        CallByName(lambda logprobs, advantage: 0, LOSS_ARGUMENTS, "loss `my/x`")
    text = str(error.value)
    assert text.startswith("loss `my/x`: it asks for `advantage`, which does not exist; did you mean `advantages`?")
    assert all(f"`{name}`" in text for name in LOSS_ARGUMENTS)
    assert error.value.exit_code == 3


def test_other_unusable_callables():
    with pytest.raises(PluginError, match="positional-only"):
        CallByName(lambda logprobs, /: 0, KNOWN, "loss `x`")
    with pytest.raises(PluginError, match="int object cannot be called"):
        CallByName(3, KNOWN, "loss `x`")  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="signature cannot be read"):
        CallByName(dict.fromkeys.__self__, KNOWN, "loss `x`")


def test_async_is_known():
    async def reward(response):
        return 1.0

    class Reward:
        async def __call__(self, response):
            return 1.0

    assert CallByName(reward, ("response",), "r").is_async
    assert CallByName(Reward(), ("response",), "r").is_async
    assert not CallByName(lambda response: 1.0, ("response",), "r").is_async
