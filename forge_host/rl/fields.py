"""Fields that several losses have, written once. Torch-free.

@attrs.frozen(kw_only=True)
class MyLoss:
    clip_low: float = clip_low(0.2)
"""

from __future__ import annotations

from typing import Any

from attrs.validators import and_, ge, gt, le, optional

from forge_host.types import field


def clip_low(default: float | None) -> Any:
    check = and_(ge(0.0), le(1.0))
    if default is None:
        return field(default=None, help="lower bound 1 - clip_low of the ratio, or null", validator=optional(check))
    return field(default=default, help="lower bound 1 - clip_low of the ratio", validator=check)


def clip_high(default: float) -> Any:
    return field(default=default, help="upper bound 1 + clip_high of the ratio", validator=ge(0.0))


def dual_clip() -> Any:
    return field(
        default=None,
        help="bound on the ratio of tokens with a negative advantage (verl: 3); null is none",
        validator=optional(gt(1.0)),
    )


def log_ratio_clamp() -> Any:
    return field(
        default=None,
        help="bound on the log-ratio before exp (verl 20, torchtitan 10); null is 40 in float32, 300 in float64",
        unit="nats",
        validator=optional(gt(0.0)),
    )
