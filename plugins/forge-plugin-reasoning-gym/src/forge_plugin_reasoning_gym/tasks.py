"""The dataset `tasks`: problems of one task or of several, made when they are asked for.

    dataset = Tasks(task="countdown", size=1000, seed=0)
    dataset[3].text, dataset[3].target

Sized and indexable; what the grader needs to judge an answer goes along in the prompt's metadata, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import attrs
from attrs.validators import and_, ge, le

from forge_host.api import Prompt, UsageError, field
from forge_plugin_reasoning_gym.library import make_task

#: Where the metadata has a problem as the library made it.
ENTRY = "reasoning_gym"


@attrs.frozen(kw_only=True)
class Tasks:
    """`size` problems, the same for the same settings and release of the library."""

    task: str = field(default="basic_arithmetic", help="name of one task")
    params: Mapping[str, Any] = field(factory=dict, help="fields of that task's own configuration, as min_numbers")
    tasks: Mapping[str, Mapping[str, Any]] = field(
        factory=dict, help="several tasks instead of one: each name with its parameters, and a weight (1) among them"
    )
    size: int = field(default=1000, help="problems in an epoch", validator=and_(ge(1), le(10_000_000)))
    seed: int = field(default=0, help="seed of the problems; another one for held-out problems")
    template: str = field(default="{prompt}", help="text put around every problem, which replaces {prompt}")

    def __attrs_post_init__(self) -> None:
        if self.tasks and self.params:
            raise UsageError("dataset `reasoning-gym/tasks`: params belong to task; with tasks each has its own")
        if "{prompt}" not in self.template:
            raise UsageError(f"dataset `reasoning-gym/tasks`: template {self.template!r} has no {{prompt}}")
        for name, given in self._wanted.items():
            weight = given.get("weight", 1)
            if not isinstance(weight, (int, float)) or weight <= 0:
                raise UsageError(f"dataset `reasoning-gym/tasks`: the weight of {name} is {weight!r}, not above 0")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < self.size:
            raise IndexError(index)
        name = self._name(index)
        state = random.getstate()  # some tasks seed the global generator
        try:
            entry = json.loads(json.dumps(self._made[name][index], default=str))
        finally:
            random.setstate(state)
        return Prompt(
            id=f"{name}-{self.seed}-{index}",
            text=self.template.replace("{prompt}", str(entry["question"])),
            target=None if entry["answer"] is None else str(entry["answer"]),
            metadata={"category": name, ENTRY: entry},
        )

    def __iter__(self) -> Iterator[Prompt]:
        return (self[index] for index in range(self.size))

    def fingerprint(self) -> str:
        """Hash of the settings, the library's release, and the first problem of each task."""
        from importlib.metadata import version

        first = [str(self._made[name][0]["question"]) for name in self._wanted]
        settings = (sorted(attrs.asdict(self).items(), key=str), version("reasoning-gym"), first)
        return hashlib.sha256(repr(settings).encode()).hexdigest()

    @property
    def _wanted(self) -> Mapping[str, Mapping[str, Any]]:
        return self.tasks or {self.task: self.params}

    @cached_property
    def _made(self) -> dict[str, Any]:
        given = {n: {k: v for k, v in p.items() if k != "weight"} for n, p in self._wanted.items()}
        return {name: make_task(name, params, size=self.size, seed=self.seed) for name, params in given.items()}

    def _name(self, index: int) -> str:
        """The task of problem `index`, drawn by weight from a generator of its own."""
        names = list(self._wanted)
        weights = [float(self._wanted[name].get("weight", 1)) for name in names]
        return random.Random(f"{self.seed}:{index}").choices(names, weights)[0]
