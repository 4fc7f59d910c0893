"""What is computed tile by tile on a CPU is what TorchTitan's modules compute."""

import pytest
import torch
import torch.nn.functional as F

BFLOAT16 = {"rtol": 2e-2, "atol": 2e-2}

@pytest.fixture(autouse=True)
def small_tiles(monkeypatch) -> None:
    import forge_plugin_titan.tiles as tiles

    monkeypatch.setattr(tiles, "TILE", 64)  # several tiles, the last one smaller


def gradients(forward, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, then the inputs' gradients, under the same random gradient of the output."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    outputs = forward(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.manual_seed(1)
    torch.autograd.backward(outputs, [torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in outputs])
    return [*(o.detach() for o in outputs), *(x.grad for x in inputs if x.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 7, 24), (1, 5, 3, 24)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from forge_plugin_titan.tiles import TiledRMSNorm

    norm = TiledRMSNorm.Config(normalized_shape=24, eps=1e-5).build()
    x, weight = torch.randn(shape, dtype=dtype), torch.rand(24, dtype=dtype)

    def ours(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        del norm.weight
        norm.weight = weight  # as FSDP does it: a tensor in the parameter's place
        return norm(x)

    theirs = gradients(lambda x, weight: F.rms_norm(x, (24,), weight, 1e-5), x, weight)
    for mine, their in zip(gradients(ours, x, weight), theirs, strict=True):
        torch.testing.assert_close(mine, their, **BFLOAT16 if dtype == torch.bfloat16 else {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_and_rotation(dtype: torch.dtype) -> None:
    from forge_plugin_titan.tiles import TiledRoPE, _Gate
    from torchtitan.models.common import ComplexRoPE

    gate, up = torch.randn(2, 7, 24, dtype=dtype).unbind()
    near = BFLOAT16 if dtype == torch.bfloat16 else {}
    mine, theirs = gradients(_Gate.apply, gate, up), gradients(lambda a, b: F.silu(a) * b, gate, up)
    torch.testing.assert_close(mine, theirs, **near)

    query, key = torch.randn(1, 9, 4, 8, dtype=dtype), torch.randn(1, 9, 2, 8, dtype=dtype)
    angles = torch.polar(torch.ones(1, 9, 1, 4), torch.randn(1, 9, 1, 4))
    mine, theirs = (
        gradients(lambda q, k, cls=cls: cls.apply_rotary_emb(q, k, angles), query, key)
        for cls in (TiledRoPE, ComplexRoPE)
    )
    torch.testing.assert_close(mine, theirs, **near)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_blocks_of_attention(dtype: torch.dtype) -> None:
    from forge_plugin_titan.attention import _Blocks

    q, k, v = (torch.randn(2, n, heads, 8, dtype=dtype) for n, heads in ((3, 4), (5, 2), (5, 2)))
    blocked = torch.ones(3, 5, dtype=torch.bool).triu(3)[None, None]

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~blocked, enable_gqa=True).transpose(1, 2)

    mine = gradients(lambda q, k, v: _Blocks.apply(q, k, v, 8**-0.5, blocked), q, k, v)
    for found, expected in zip(mine, gradients(theirs, q.double(), k.double(), v.double()), strict=True):
        error = (found.double() - expected).norm() / expected.norm()
        assert error < (1e-2 if dtype == torch.bfloat16 else 1e-12)
