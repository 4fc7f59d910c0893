"""Log-probabilities and entropies: right, differentiable, and without a second copy of the logits."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from forge_host.rl import linear_logprobs, token_logprobs


def naive(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = torch.log_softmax(logits.double() / temperature, -1)
    return log_p.gather(-1, ids.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values(chunk: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator)
    weight = torch.randn(11, 5, generator=generator)
    ids = torch.randint(11, (7,), generator=generator)
    expected = naive(hidden @ weight.t(), ids, temperature)
    for found in (
        token_logprobs(hidden @ weight.t(), ids, temperature, chunk, with_entropy=True),
        linear_logprobs(hidden, weight, ids, temperature, chunk, with_entropy=True),
    ):
        for value, right in zip(found, expected, strict=True):
            assert value is not None and value.dtype == torch.float32
            torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradients(with_entropy: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 3, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(9, (6,), generator=generator)

    def fused(h: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x for x in linear_logprobs(h, w, ids, 0.8, 4, with_entropy) if x is not None)

    def chunked(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = token_logprobs(z, ids.view(2, 3), 0.8, 4, with_entropy=with_entropy)
        return tuple(x for x in found if x is not None)

    assert torch.autograd.gradcheck(fused, (hidden, weight))
    assert torch.autograd.gradcheck(chunked, (logits,))


def test_weight_without_gradient() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    linear_logprobs(hidden, torch.randn(5, 4), torch.tensor([0, 4, 2]))[0].sum().backward()
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()


def test_bfloat16_is_as_good_as_the_plain_form() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(64, 32, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(200, 32, generator=generator).bfloat16().requires_grad_()
    ids = torch.randint(200, (64,), generator=generator)
    plain = torch.log_softmax((hidden @ weight.t()).float(), -1).gather(1, ids[:, None])[:, 0]
    expected = torch.autograd.grad(plain.sum(), (hidden, weight))
    fused, _ = linear_logprobs(hidden, weight, ids, block=50)
    found = torch.autograd.grad(fused.sum(), (hidden, weight))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b.float(), rtol=0.02, atol=0.02 * float(b.abs().max()))


def test_under_autocast_products_run_in_its_dtype() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs, _ = linear_logprobs(hidden, weight, torch.arange(4))
    exact, _ = linear_logprobs(hidden.bfloat16(), weight.bfloat16(), torch.arange(4))
    assert torch.equal(logprobs, exact)
    logprobs.sum().backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.float32


def test_impossible_tokens_add_nothing_to_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([0]), with_entropy=True)
    assert entropy is not None
    (grad,) = torch.autograd.grad(logprobs.sum() + entropy.sum(), logits)
    torch.testing.assert_close(entropy, torch.tensor([2.0]).log())
    assert torch.isfinite(grad).all() and grad[0, 2] == 0


def test_a_place_without_weight_gets_no_gradient_from_bad_logits() -> None:
    logits = torch.tensor([[torch.nan, 0.0], [1.0, 0.0]], requires_grad=True)
    logprobs, _ = token_logprobs(logits, torch.tensor([0, 0]))
    (grad,) = torch.autograd.grad(torch.where(torch.tensor([False, True]), logprobs, 0.0).sum(), logits)
    assert (grad[0] == 0).all() and torch.isfinite(grad).all()


def test_overwriting_gives_the_same_gradient_in_the_logits_memory() -> None:
    logits = torch.randn(4, 6).requires_grad_()
    ids = torch.arange(4)
    (expected,) = torch.autograd.grad(token_logprobs(logits, ids)[0].sum(), logits)
    leaf = logits.detach().clone().requires_grad_()
    copy = leaf * 1.0
    (found,) = torch.autograd.grad(token_logprobs(copy, ids, chunk=2, overwrite_logits=True)[0].sum(), copy)
    torch.testing.assert_close(found, expected)
    assert found.data_ptr() == copy.data_ptr()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_logprobs(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64)), "not one a row"),
        (lambda: token_logprobs(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), 0.0), "temperature is 0.0"),
        (lambda: linear_logprobs(torch.zeros(2, 3), torch.zeros(4, 5), torch.zeros(2, dtype=torch.int64)), "are not"),
    ],
    ids=["ids", "temperature", "hidden"],
)
def test_bad_shapes(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


PEAK = """
import resource, sys, torch
from forge_host.rl import linear_logprobs, token_logprobs
torch.set_num_threads(1)
rows, vocabulary, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dtype = torch.float32 if how == "float32" else torch.bfloat16
ids = torch.arange(rows) % vocabulary
linear_logprobs(torch.ones(2, 2), torch.ones(2, 2), torch.tensor([0, 1]))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
if how == "fused":
    hidden = torch.full((rows, 16), 0.5, dtype=dtype).requires_grad_()
    weight = torch.full((vocabulary, 16), 0.01, dtype=dtype).requires_grad_()
    before = peak()
    linear_logprobs(hidden, weight, ids)[0].sum().backward()
else:
    before = peak()
    logits = torch.empty(rows, vocabulary, dtype=dtype).fill_(0.25)
    if how == "float32":
        before = peak()
    token_logprobs(logits, ids)
print((peak() - before) / (rows * vocabulary * 2))
"""


def peak_share(rows: int, vocabulary: int, how: str) -> float:
    """Peak memory over what was there before, in copies of the bfloat16 logits."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), str(rows), str(vocabulary), how],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return float(done.stdout)


@pytest.mark.parametrize("how", ["bfloat16", "float32", "fused"])
def test_peak_memory(how: str) -> None:
    """bfloat16: the logits themselves and the work. float32: what comes on top of the logits. fused: no logits at all,
    forward and backward. At most 1.3 copies of the bfloat16 logits."""
    assert peak_share(1024, 151936, how) < 1.3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bfloat16", "float32", "fused"])
def test_peak_memory_of_the_full_size(how: str) -> None:
    """[8, 1024, 151936]; needs 6 GiB."""
    assert peak_share(8 * 1024, 151936, how) < 1.3


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fused_passes_give_the_same(compiled: bool, with_entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA compiles, here as plain functions and compiled for the CPU; some tokens have no weight."""
    from forge_host.rl import linear

    if not compiled:
        monkeypatch.setattr(linear, "_fused_stats", linear._stats)
        monkeypatch.setattr(linear, "_fused_grad", linear._grad)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(12, 16, generator=generator, requires_grad=True)
    weight = torch.randn(70, 16, generator=generator, requires_grad=True)
    ids = torch.randint(70, (12,), generator=generator)
    upstream = torch.randn(12, generator=generator) * (torch.arange(12) % 3 > 0)
    found = []
    for fuse, keep in ((False, 0), (True, 0), (True, 2 * 12 * 32 * 4), (False, 10**9)):
        options = linear._Options(
            temperature=0.7, block=32, with_entropy=with_entropy, dtype=torch.float32, keep_bytes=keep, fuse=fuse
        )
        logprobs, entropy = linear._LinearLogprobs.apply(hidden, weight, ids, options)
        total = (logprobs * upstream).sum() + ((entropy * upstream).sum() if with_entropy else 0.0)
        grads = torch.autograd.grad(total, (hidden, weight), retain_graph=True)
        again = torch.autograd.grad(total, (hidden, weight))  # what was kept is made again
        assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))
        found.append((logprobs, entropy, *grads))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


def test_blocks_are_aligned() -> None:
    from forge_host.rl.linear import _block

    assert all(_block(n, device) % 512 == 0 for n in (1, 3000, 10**7) for device in ("cpu", "cuda"))
    assert _block(3072, "cuda") > 3 * _block(3072, "cpu")
