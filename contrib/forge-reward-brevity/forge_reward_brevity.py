"""The reward `brevity`: 1 for an empty reply, falling in a line to 0 at `budget` tokens."""

import attrs

from forge_host.api import ComponentSpec, field, hookimpl

FORGE_API = "1.0"


@hookimpl
def forge_rewards(host):
    return [ComponentSpec("brevity", "forge_reward_brevity:Brevity", "shorter replies score higher")]


@attrs.frozen(kw_only=True)
class Brevity:
    budget: int = field(default=64, help="length that scores 0", unit="tokens", validator=attrs.validators.ge(1))

    def __call__(self, length):
        return max(0.0, 1.0 - length / self.budget)
