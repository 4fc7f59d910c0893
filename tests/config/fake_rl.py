"""A one-file plugin with a light stand-in for every component a configuration chooses; never trains, only resolves."""

import attrs

from forge_host.api import KL, AlgorithmParts, ComponentSpec, Correction, Finding, SamplingParams, Use, field, hookimpl

FORGE_API = "1.0"


def spec(name, attribute, **more):
    return ComponentSpec(name, f"{__file__}:{attribute}", f"stand-in {name}", **more)


@hookimpl
def forge_algorithms(host):
    return [spec("grpo", "Grpo"), spec("dapo", "Dapo"), spec("corrected", "Corrected")]


@hookimpl
def forge_losses(host):
    return [
        spec("grpo", "ClipLoss"),
        spec("dapo", "ClipLoss"),
        spec("needs-ref", "Plain", needs=("ref_logprobs",)),
        spec("unfiltered", "Plain", needs=("unfiltered-sampling",)),
    ]


@hookimpl
def forge_advantages(host):
    return [spec("grpo", "Group", needs=("groups",)), spec("single", "Plain")]


@hookimpl
def forge_samplers(host):
    return [spec("all", "Plain"), spec("dynamic", "Plain")]


@hookimpl
def forge_rewards(host):
    return [spec("math", "MathReward"), spec("half", "Half"), spec("thinking", "Plain"), spec("overlong", "Plain")]


@hookimpl
def forge_datasets(host):
    return [spec("hf", "HubDataset")]


@hookimpl
def forge_generators(host):
    return [spec("vllm", "Engine"), spec("other-engine", "Plain")]


@hookimpl
def forge_trainers(host):
    return [spec("titan", "Plain")]


@hookimpl
def forge_launchers(host):
    return [ComponentSpec("here", "forge_host.runtime.launch:LocalLauncher", "this host")]


@hookimpl
def forge_models(host):
    return [spec("tiny", "Model")]


@hookimpl
def forge_check_plan(plan):
    if plan.generator.use.config.get("speed") == 13:
        yield Finding("error", "speed 13 is unlucky", "take another")
    if plan.generator.use.config.get("speed") == 7:
        yield Finding("warning", "speed 7 is slow", "take another")


@attrs.frozen(kw_only=True)
class Grpo:
    n_samples: int = field(default=8, help="responses per prompt")
    clip_low: float = field(default=0.2, help="lower clip", validator=attrs.validators.ge(0))
    clip_high: float = field(default=0.28, help="upper clip")
    beta: float = field(default=0.0, help="KL coefficient")
    temperature: float = field(default=1.0, help="sampling temperature")
    max_tokens: int = field(default=64, help="response budget", unit="tokens")

    loss = "grpo"

    def build(self):
        return AlgorithmParts(
            loss=Use(self.loss, {"clip_low": self.clip_low, "clip_high": self.clip_high}),
            advantage=Use("grpo"),
            sampler=Use("all"),
            kl=KL(beta=self.beta),
            entropy_coef=0.003,
            sampling=SamplingParams(n=self.n_samples, temperature=self.temperature, max_tokens=self.max_tokens),
        )


@attrs.frozen(kw_only=True)
class Dapo(Grpo):
    loss = "dapo"

    def build(self):
        return attrs.evolve(super().build(), sampler=Use("dynamic"), shaping=(Use("overlong"),))


@attrs.frozen(kw_only=True)
class Corrected(Grpo):
    def build(self):
        return attrs.evolve(super().build(), correction=Correction(mode="truncate"))


@attrs.frozen(kw_only=True)
class ClipLoss:
    clip_low: float = field(default=0.2, help="lower clip")
    clip_high: float = field(default=0.2, help="upper clip")

    def __call__(self, logprobs, advantages):
        raise AssertionError("resolving a configuration must not compute")


@attrs.frozen(kw_only=True)
class Group:
    eps: float = field(default=1e-4, help="added to the standard deviation")


@attrs.frozen
class Plain:
    pass


@attrs.frozen(kw_only=True)
class MathReward:
    tolerance: float = field(default=1e-6, help="relative tolerance")


@attrs.frozen(kw_only=True)
class Half:
    of: Use = field(help="the reward that is halved")
    scale: float | None = field(default=None, help="instead of a half")


@attrs.frozen(kw_only=True)
class HubDataset:
    path: str = field(help="hub name or folder")
    split: str = field(default="train", help="part of the data")
    streaming: bool = field(default=False, help="read while training")
    revision: str | None = field(default=None, help="commit")


@attrs.frozen(kw_only=True)
class Engine:
    speed: int = field(default=1, help="how fast", validator=attrs.validators.ge(1))
    stops: tuple[str, ...] = field(default=(), help="strings that end a response")


@attrs.frozen
class Model:
    def local_path(self):
        return "/models/tiny"
