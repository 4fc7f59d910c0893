"""What a sampler must do: `SamplerContract`.

    from forge_host.testing import SamplerContract

    class TestMySampler(SamplerContract):
        ref = "my_pkg.samplers:MySampler"
        keeps = [[0.0, 1.0]]
        drops = [[1.0, 1.0]]

A verdict depends on the group alone, not on the order of its responses; a dropped group has a reason; a group without a
graded response never reaches the trainer.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import attrs

from forge_host.plugins import PluginHost
from forge_host.plugins.structure import structure
from forge_host.types import Completion, Episode, Group, Prompt, Use, Verdict

#: None is a response that could not be graded.
GROUPS: tuple[tuple[float | None, ...], ...] = (
    (0.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0), (0.7, 0.7, 0.7), (0.1, 0.25, 0.9),
    (None, 1.0, 0.0), (None, 1.0, 1.0), (-1.0, 1.0), (0.5,),
)  # fmt: skip


def group_of(rewards: Sequence[float | None], part: str | None = None, lengths: Sequence[int] = ()) -> Group:
    """A group with these rewards; `part` also records each under that name, as a reward component's value."""
    prompt = Prompt(id="p", text="?")
    episodes = []
    for index, reward in enumerate(rewards):
        number = lengths[index] if lengths else 1
        completion = Completion(text="", token_ids=[1] * number, logprobs=[-0.5] * number)
        parts = {part: reward} if part and reward is not None else {}
        error = "not gradable" if reward is None else None
        episodes.append(
            Episode(id=f"p/{index}", prompt=prompt, completion=completion, reward=reward, parts=parts, error=error)
        )
    return Group(id="g", prompt=prompt, episodes=tuple(episodes))


@lru_cache(maxsize=1)
def _host() -> PluginHost:
    return PluginHost.load()


class SamplerContract:
    """Subclass it, as `class TestMySampler(SamplerContract)`, and set `ref`; `keeps` and `drops` list rewards."""

    ref: ClassVar[Any]
    config: ClassVar[Mapping[str, Any]] = {}
    keeps: ClassVar[Sequence[Sequence[float | None]]] = ()
    drops: ClassVar[Sequence[Sequence[float | None]]] = ()

    def test_gives_verdicts(self) -> None:
        for rewards in GROUPS:
            verdict = self._sampler().verdict(group_of(rewards))
            assert isinstance(verdict, Verdict), f"verdict is a {type(verdict).__name__}"
            assert verdict.keep or verdict.reason, f"{rewards} is dropped without a reason"

    def test_ungraded_group_is_dropped(self) -> None:
        for rewards in ((None, None), ()):
            verdict = self._sampler().verdict(group_of(rewards))
            assert not verdict.keep and verdict.reason

    def test_order_of_responses_does_not_matter(self) -> None:
        for rewards in GROUPS:
            first, last = (self._sampler().verdict(group_of(r)).keep for r in (rewards, tuple(reversed(rewards))))
            assert first == last, f"{rewards} and its reverse get different verdicts"

    def test_same_group_same_verdict(self) -> None:
        sampler = self._sampler()
        group = group_of(GROUPS[0])
        before = attrs.asdict(group)
        assert sampler.verdict(group) == sampler.verdict(group)
        assert attrs.asdict(group) == before, "the group was changed"

    def test_survives_a_checkpoint(self) -> None:
        """A sampler is saved with the run and restored in another process."""
        sampler = self._sampler()
        restored = pickle.loads(pickle.dumps(sampler))
        for rewards in GROUPS:
            assert restored.verdict(group_of(rewards)) == sampler.verdict(group_of(rewards))

    def test_keeps_and_drops_as_declared(self) -> None:
        for expected, groups in ((True, self.keeps), (False, self.drops)):
            for rewards in groups:
                assert self._sampler().verdict(group_of(rewards)).keep is expected, f"{list(rewards)}"

    def _sampler(self) -> Any:
        if isinstance(self.ref, str):
            return _host().build("sampler", Use(self.ref, dict(self.config)))
        if isinstance(self.ref, type) and attrs.has(self.ref):
            return structure(self.ref, self.config, f"sampler `{self.ref.__name__}`")
        return self.ref(**self.config) if isinstance(self.ref, type) else self.ref
