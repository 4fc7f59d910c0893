"""Environments of the letters model: plain text, no chat template."""

import attrs

from forge_host.api import field


@attrs.frozen(kw_only=True)
class SayB:
    """Asks twice; the reward is the share of b in both replies."""

    max_tokens: int = field(default=6, help="tokens of a reply", unit="tokens")

    async def rollout(self, prompt, generate):
        messages = [{"role": "user", "content": prompt.text}]
        first = await generate(messages, max_tokens=self.max_tokens)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "cab"}]
        text = first.text + (await generate(messages, max_tokens=self.max_tokens)).text
        return generate.episode(reward=text.count("b") / max(1, len(text)), parts={"turns": 2.0})


@attrs.frozen
class Fails:
    async def rollout(self, prompt, generate):
        await generate([{"role": "user", "content": prompt.text}])
        raise ValueError("broken tool")


@attrs.frozen
class Nothing:
    pass
