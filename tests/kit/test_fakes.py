"""The fakes learn, agree with each other to the bit, and fail like the real ones."""

import pytest
import torch

from forge_host.api import RunError, SamplingParams
from forge_host.testing.fakes import END, FakeGenerator, FakeTrainer, MemoryTransport, fake_batch

PARAMS = SamplingParams(n=32, max_tokens=6)


def test_learns_what_the_reward_asks_for():
    transport = MemoryTransport()
    generator, trainer = FakeGenerator(transport=transport), FakeTrainer(transport=transport)
    means = []
    for version in range(1, 31):
        completions = generator.generate([1, 2], PARAMS)
        rewards = torch.tensor([c.text.count("d") / PARAMS.max_tokens for c in completions])
        means.append(float(rewards.mean()))
        trainer.train_step(*fake_batch(completions, (rewards - rewards.mean()) / (rewards.std() + 1e-6)))
        assert generator.update_weights(trainer.publish(version), checksum=True)
    assert sum(means[:3]) / 3 < 0.2 and sum(means[-3:]) / 3 > 0.6
    assert generator.policy_version == 30 and torch.equal(generator.weight, trainer.weight.detach())


def test_trainer_gives_the_generators_logprobs_packed_and_plain():
    completions = FakeGenerator().generate([3, 4], PARAMS)
    inputs, targets = fake_batch(completions, torch.ones(PARAMS.n))
    (logprobs,) = FakeTrainer().logprobs(inputs, targets)
    torch.testing.assert_close(logprobs, targets[0]["generator_logprobs"], rtol=0, atol=0)
    prompts = torch.tensor([[3, 4]] * PARAMS.n)
    plain = [{"tokens": torch.cat([prompts, targets[0]["response"]], dim=1)}]
    assert torch.equal(FakeTrainer().logprobs(plain, targets)[0], logprobs)


def test_same_seed_same_tokens_and_versions_are_recorded():
    params = SamplingParams(n=2, max_tokens=5, seed=7)
    generator = FakeGenerator()
    first = generator.generate([1], params)
    generator.generate([2], PARAMS)
    assert generator.generate([1], params) == first
    assert all(c.policy_versions == [0] * len(c.token_ids) for c in first)
    assert all((c.token_ids[-1] == END) == (c.finish_reason == "stop") for c in first)


def test_gradient_does_not_depend_on_micro_batches():
    completions = FakeGenerator().generate([1, 2, 3], PARAMS)
    advantages = torch.linspace(-1, 1, PARAMS.n)
    whole, split = FakeTrainer(), FakeTrainer()
    loss = whole.train_step(*fake_batch(completions, advantages))
    split_loss = split.train_step(*fake_batch(completions, advantages, num_batches=4))
    assert loss == pytest.approx(split_loss, abs=1e-6)
    torch.testing.assert_close(whole.weight, split.weight)


def test_loss_gets_what_it_names_and_an_unknown_name_is_an_error():
    def wants(logprobs, sunshine):
        raise AssertionError("must not be called")

    batch = fake_batch(FakeGenerator().generate([1], PARAMS), torch.ones(PARAMS.n))
    with pytest.raises(ValueError, match="asks for sunshine"):
        FakeTrainer(loss=wants).train_step(*batch)


def test_versions_increase_and_old_ones_go():
    transport = MemoryTransport()
    trainer = FakeTrainer(transport=transport)
    receipts = [trainer.publish(version) for version in (1, 2, 3)]
    with pytest.raises(ValueError, match="version 3 was published after 3"):
        trainer.publish(3)
    with pytest.raises(RunError, match="version 1 is gone"):
        list(transport.fetch(receipts[0]))
    assert receipts[2].checksums and receipts[2].num_tensors == 1
