"""Parts of handing the weights on that replace PyTorch's own for speed: they give the same."""

from __future__ import annotations

import torch
from forge_plugin_titan.weights import _add_state, _cast, _renamed


class Own(torch.nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "twice"] = self.weight.detach() * 2


def drop_bias(module, state, prefix, _):
    state.pop(prefix + "0.bias")


def test_a_modules_state_is_what_state_dict_gives():
    """Hooks, buffers that are not saved, parameters that are not there, and classes that have a say themselves."""
    model = torch.nn.ModuleDict({
        "plain": torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.BatchNorm1d(3)),
        "own": torch.nn.Sequential(Own(2, 2)), "hooked": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
    })  # fmt: skip
    model["plain"].register_buffer("unsaved", torch.ones(1), persistent=False)
    model["hooked"].register_state_dict_post_hook(drop_bias)
    found: dict[str, torch.Tensor] = {}
    _add_state(model, "x.", found)
    expected = model.state_dict(prefix="x.")
    assert list(found) == list(expected) and "x.own.0.twice" in found and "x.hooked.0.bias" not in found
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_cast_is_what_to_gives():
    given = {"a": torch.rand(3, 4).t(), "b": torch.rand(5, dtype=torch.float64), "c": torch.rand(2).bfloat16()}
    for dtype in (torch.bfloat16, torch.float32):
        found = _cast(given, dtype)
        assert list(found) == list(given)
        assert all(torch.equal(found[n], t.to(dtype)) and found[n].dtype == dtype for n, t in given.items())


class Adapter:
    """Renames `a...`, changes `b...`, leaves out the rest."""

    def to_hf(self, tensors):
        self.asked = list(tensors)
        return {f"hf.{n}": t if n[0] == "a" else t + 1 for n, t in tensors.items() if n[0] in "ab"}


def test_an_adapter_is_asked_again_about_what_it_changes():
    adapter = Adapter()
    for value in (1.0, 2.0):
        given = {name: torch.full((2,), value) for name in ("a1", "b1", "a2", "c1")}
        found = _renamed(adapter, given)
        expected = {"hf.a1": value, "hf.b1": value + 1, "hf.a2": value}
        assert {n: t[0].item() for n, t in found.items()} == expected and list(found) == list(expected)
    assert adapter.asked == ["b1", "c1"]
