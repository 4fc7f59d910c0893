"""A generator and a trainer without vLLM, TorchTitan or a model file, to test loops and losses in milliseconds.

    import torch

    from forge_host.api import SamplingParams
    from forge_host.testing.fakes import FakeGenerator, FakeTrainer, fake_batch

    generator, trainer = FakeGenerator(), FakeTrainer()
    completions = generator.generate([1, 2], SamplingParams(n=4, max_tokens=8, seed=0))
    rewards = torch.tensor([c.text.count("b") for c in completions], dtype=torch.float32)
    loss = trainer.train_step(*fake_batch(completions, rewards - rewards.mean()))

Their model is a table of next-token logits by the previous token (`weight` [V, V]), so log-probabilities are exact,
equal on both sides to the last bit, and learning is real. Same seed, same tokens, whatever was called before.
They have the methods of `forge_host.api.Generator` and `Trainer`, as plain methods instead of Monarch endpoints.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from forge_host.api import Completion, Receipt, RunError, SamplingParams, Transport, tensor_digest, weights_digest

VOCAB_SIZE = 16
END = 0  #: the token that ends a response; token i is written as the i-th letter, "a" being the end


def initial_weight(vocab_size: int = VOCAB_SIZE, seed: int = 0) -> torch.Tensor:
    """The table both sides start from. [V, V] float32"""
    return torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)) * 0.1


def table_logprobs(weight: torch.Tensor, previous: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities (nats) of every next token after `previous` [...]. Returns [..., V]"""
    return torch.log_softmax(weight[previous] / temperature, dim=-1)


def fake_decode(token_ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + i) for i in token_ids if i != END)


class MemoryTransport:
    """A transport inside one process: keeps copies of the newest two versions."""

    def __init__(self) -> None:
        self._versions: dict[int, dict[str, torch.Tensor]] = {}

    def open(self, namespace: str) -> None:
        self._versions.clear()

    def publish(self, version: int, tensors: Any, *, checksums: bool = False) -> Receipt:
        if self._versions and version <= max(self._versions):
            raise ValueError(f"version {version} was published after {max(self._versions)}")
        held = {name: tensor.detach().clone() for name, tensor in tensors}
        self._versions[version] = held
        for old in sorted(self._versions)[:-2]:
            del self._versions[old]
        return Receipt(
            version=version,
            num_tensors=len(held),
            num_bytes=sum(t.nbytes for t in held.values()),
            location={"version": version},
            checksums={name: tensor_digest(t) for name, t in held.items()} if checksums else None,
        )

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, torch.Tensor]]:
        if receipt.version not in self._versions:
            raise RunError(f"version {receipt.version} is gone; held are {sorted(self._versions)}")
        yield from self._versions[receipt.version].items()

    def close(self) -> None:
        self._versions.clear()


class FakeGenerator:
    """Samples from the table; `policy_version` is that of the last loaded receipt, 0 before any."""

    def __init__(self, *, vocab_size: int = VOCAB_SIZE, seed: int = 0, transport: Transport | None = None) -> None:
        self.weight = initial_weight(vocab_size, seed)
        self.policy_version, self.calls = 0, 0
        self._seed, self._transport = seed, transport

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[Completion]:
        """`params.n` completions of at most `params.max_tokens` tokens. `top_p`, `top_k` and `stop` are refused."""
        if params.top_p != 1 or params.top_k != 0 or params.stop:
            raise ValueError("FakeGenerator samples unfiltered; leave top_p at 1, top_k at 0 and stop empty")
        if not prompt_ids:
            raise ValueError("the prompt has no tokens")
        self.calls += 1
        seed = self._seed * 1_000_003 + self.calls if params.seed is None else params.seed
        random = torch.Generator().manual_seed(seed)
        return [self._sample(list(prompt_ids), params, random) for _ in range(params.n)]

    def _sample(self, prompt_ids: list[int], params: SamplingParams, random: torch.Generator) -> Completion:
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < params.max_tokens and (not tokens or tokens[-1] != END):
            previous = torch.tensor(tokens[-1] if tokens else prompt_ids[-1])
            row = table_logprobs(self.weight, previous, params.temperature or 1.0)
            token = int(torch.multinomial(row.exp(), 1, generator=random)) if params.temperature else int(row.argmax())
            tokens.append(token)
            logprobs.append(float(row[token]))
        return Completion(
            text=fake_decode(tokens),
            token_ids=tokens,
            logprobs=logprobs,
            prompt_ids=prompt_ids,
            policy_versions=[self.policy_version] * len(tokens),
            finish_reason="stop" if tokens[-1] == END else "length",
        )

    def update_weights(self, receipt: Receipt, checksum: bool = False) -> str:
        if self._transport is None:
            raise RunError("this FakeGenerator has no transport", fix="pass transport= to it and to the trainer")
        tensors = dict(self._transport.fetch(receipt))
        self.weight = tensors["weight"].clone()
        self.policy_version = receipt.version
        return weights_digest([("weight", tensor_digest(self.weight))]) if checksum else ""


def policy_gradient(logprobs: torch.Tensor, generator_logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """The default loss: importance-weighted policy gradient, per token. [B, T]"""
    return -torch.exp(logprobs - generator_logprobs) * advantages


class FakeTrainer:
    """Trains the table by plain gradient descent; the loss is averaged over all tokens of the step.

    Takes the host's packed batches and plain ones, `tokens` [B, P + T] with the response in the last T places.

    Args:
        loss: any loss of `forge_host.api.Loss` that returns per-token values [B, T]; it gets what its signature names.
        learning_rate: step size on the logits.
    """

    def __init__(
        self,
        *,
        loss: Callable[..., torch.Tensor] = policy_gradient,
        learning_rate: float = 10.0,
        vocab_size: int = VOCAB_SIZE,
        seed: int = 0,
        transport: Transport | None = None,
    ) -> None:
        self.weight = initial_weight(vocab_size, seed).requires_grad_()
        self.policy_version = 0
        self._loss, self._learning_rate, self._transport = loss, learning_rate, transport

    def train_step(self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]) -> float:
        """One optimizer step over all micro-batches; returns the mean loss of the step's tokens."""
        num_tokens = sum(int(t["padding_mask"].sum()) for t in targets)
        if num_tokens == 0:
            raise ValueError("no token of this step counts: every padding_mask is empty")
        names = inspect.signature(self._loss).parameters
        total = 0.0
        for batch, target in zip(inputs, targets, strict=True):
            mask = target["padding_mask"]
            known = {**target, "logprobs": torch.where(mask, self._response_logprobs(batch, target), 0.0)}
            missing = [name for name in names if name not in known]
            if missing:
                raise ValueError(f"the loss asks for {', '.join(missing)}; this batch has {', '.join(sorted(known))}")
            per_token = self._loss(**{name: known[name] for name in names})
            part = torch.where(mask, per_token, 0.0).sum() / num_tokens
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        assert self.weight.grad is not None
        with torch.no_grad():
            self.weight -= self._learning_rate * self.weight.grad
        self.weight.grad = None
        return total

    def logprobs(self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
        """Log-probabilities of the response tokens, [B, T] a micro-batch, 0 in padding."""
        with torch.no_grad():
            pairs = zip(inputs, targets, strict=True)
            return [torch.where(t["padding_mask"], self._response_logprobs(b, t), 0.0) for b, t in pairs]

    def publish(self, version: int) -> Receipt:
        if self._transport is None:
            raise RunError("this FakeTrainer has no transport", fix="pass transport= to it and to the generator")
        receipt = self._transport.publish(version, [("weight", self.weight.detach())], checksums=True)
        self.policy_version = version
        return receipt

    def _response_logprobs(self, batch: Mapping[str, Any], target: Mapping[str, Any]) -> torch.Tensor:
        response = target["response"]
        if "sequence_ids" in batch:
            previous = batch["tokens"][0][_packed_places(target)]
        else:
            previous = batch["tokens"][:, -response.shape[1] - 1 : -1]
        return table_logprobs(self.weight, previous).gather(-1, response[..., None])[..., 0]


def _packed_places(target: Mapping[str, Any]) -> torch.Tensor:
    """Where in a packed sequence the token before each response token stands; 0 in padding. [B, T] int64"""
    prompts, lengths = target["prompt_lengths"], target["lengths"]
    starts = torch.cumsum(prompts + lengths, 0) - lengths
    steps = torch.arange(target["response"].shape[1])
    return torch.where(steps < lengths[:, None], starts[:, None] + steps - 1, 0)


def fake_batch(
    completions: Sequence[Completion], advantages: torch.Tensor, num_batches: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The host's packed micro-batches (`forge_host.loop.batch`) of some completions with advantages [B]."""
    from forge_host.loop.batch import Row, make_batches

    pairs = zip(completions, advantages.tolist(), strict=True)
    return make_batches([Row(completion=c, group_id=0, reward=0.0, advantage=a) for c, a in pairs], num_batches)
