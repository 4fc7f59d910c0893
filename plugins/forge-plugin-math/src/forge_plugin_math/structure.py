"""`thinking` and `format`: rewards for the shape of a reply, whatever its answer.

ThinkingReward()(response="<think>2 and 2</think>4")                    # 1.0
FormatReward(tags=("think", "answer"))(response="<answer>4</answer>")   # 0.0
"""

from __future__ import annotations

import re

import attrs
from attrs.validators import deep_iterable, matches_re

from forge_host.api import UsageError, field

_THINK_TAG = re.compile(r"<\s*+(/?+)\s*+think\s*+>", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class ThinkingReward:
    """`full` for a `<think>...</think>` block with something in it, `partial` for any think tag at all, else 0.

    The values and the leniency (case, blanks inside the tags, any number of blocks, anywhere) are torchforge's; unlike
    there, a tag inside a block does not count as something. `strict` asks for exactly one block, at the start, with an
    answer after it.
    """

    full: float = field(default=1.0, help="value of a well-formed block")
    partial: float = field(default=0.2, help="value of an attempt: a think tag without a well-formed block")
    strict: bool = field(default=False, help="exactly one block, at the start of the reply, and an answer after it")
    opened: bool = field(default=False, help="the chat template already wrote <think> at the end of the prompt")

    def __call__(self, response: str) -> float:
        if self.opened:
            response = "<think>" + response
        tags = list(_THINK_TAG.finditer(response))
        if not tags:
            return 0.0
        if self.strict:
            closings = [bool(tag.group(1)) for tag in tags]
            well_formed = (
                closings == [False, True]
                and not response[: tags[0].start()].strip()
                and bool(response[tags[0].end() : tags[1].start()].strip())
                and bool(response[tags[1].end() :].strip())
            )
        else:
            well_formed = _has_filled_block(response, tags)
        return self.full if well_formed else self.partial


def _has_filled_block(response: str, tags: list[re.Match[str]]) -> bool:
    """Whether text that is not blank stands between an opening and the next closing tag."""
    inside, filled, end = False, False, 0
    for tag in tags:
        filled = filled or (inside and bool(response[end : tag.start()].strip()))
        if tag.group(1):
            if inside and filled:
                return True
            inside, filled = False, False
        else:
            inside = True
        end = tag.end()
    return False


@attrs.frozen(kw_only=True)
class FormatReward:
    """1 if the whole reply has the asked-for form, else 0: a regular expression, or tags in a given order.

    With `tags`, each stands exactly once, closed, with something in it, in this order; with `strict` only blanks may
    stand outside. A regular expression is matched against the whole reply (`.` matches line ends); one that backtracks
    without end runs into the reward service's deadline.
    """

    pattern: str | None = field(default=None, help="regular expression for the whole reply")
    tags: tuple[str, ...] = field(
        default=("think", "answer"),
        help="tags that follow one another; not used with pattern",
        converter=tuple,
        validator=deep_iterable(matches_re(r"[A-Za-z][\w-]*")),
    )
    strict: bool = field(default=True, help="only blanks outside the tags")

    def __attrs_post_init__(self) -> None:
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise UsageError(f"reward `format`: pattern {self.pattern!r} is no regular expression ({error})") from error
        if self.pattern is None and not self.tags:
            raise UsageError("reward `format` has neither pattern nor tags", fix="set one of them")

    def __call__(self, response: str) -> float:
        if self.pattern is not None:
            return float(re.fullmatch(self.pattern, response, re.DOTALL) is not None)
        position = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if response.count(opening) != 1 or response.count(closing) != 1:
                return 0.0
            start, end = response.find(opening), response.find(closing)
            filled = bool(response[start + len(opening) : end].strip())
            if start < position or end < start or not filled or (self.strict and response[position:start].strip()):
                return 0.0
            position = end + len(closing)
        return float(not (self.strict and response[position:].strip()))
