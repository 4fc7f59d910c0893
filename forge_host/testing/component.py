"""What every plugin owes its host, as a pytest class, and `load_component` for scripts and tests.

    from forge_host.testing import PluginContract, load_component

    class TestPlugin(PluginContract):
        plugin = "brevity"

    reward = load_component("reward", "brevity", {"budget": 100})
    assert reward(response="") == 1.0

The plugin has to be installed (`pip install -e .`), because its entry point is part of what is tested.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar

from forge_host.errors import ForgeError, PluginError, UsageError
from forge_host.plugins import PluginHost, describe
from forge_host.plugins.building import config_class, load_target
from forge_host.plugins.records import GROUP, Entry
from forge_host.plugins.structure import structure
from forge_host.plugins.targets import HEAVY
from forge_host.plugins.validate import to_plain, validate
from forge_host.types import AlgorithmParts, Kind, Use

#: Field names that say they are a quantity; such a number needs a unit.
_NUMBER = re.compile(r"\b(int|float)\b")
_QUANTITY = re.compile(r"(^|_)(s|ms|seconds|timeout|deadline|tokens|bytes|mb|gb|gib)$")


def load_component(kind: Kind, ref: str, config: Mapping[str, Any] | None = None) -> Any:
    """The component `ref` (a name, "plugin/name", "module:Attr" or "file.py:Attr") with the given values.

    Raises:
        PluginError: nothing or more than one thing has that name, or it cannot be made.
        UsageError: a value is unknown or wrong.
    """
    return PluginHost.load().build(kind, Use(ref, dict(config or {})))


class PluginContract:
    """Subclass it, as `class TestPlugin(PluginContract)`, and set `plugin`.

    Attributes:
        plugin: the plugin's name.
        configs: values for components whose settings have no default, by "kind:name".
        not_here: "kind:name" of components whose requirements cannot be installed on the machine that runs the tests
            (a GPU library); their targets are not imported.
    """

    plugin: ClassVar[str]
    configs: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    not_here: ClassVar[tuple[str, ...]] = ()

    def test_declaration_is_light(self) -> None:
        """Importing the declaration module brings none of torch, vllm, monarch, transformers, ..."""
        (point,) = entry_points(group=GROUP, name=self.plugin)
        code = (
            "import importlib, sys\n"
            "before = set(sys.modules)\n"
            f"importlib.import_module({point.module!r})\n"
            f"print(*sorted({set(HEAVY)!r} & set(sys.modules) - before))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"importing {point.module} failed:\n{done.stderr}"
        assert done.stdout.split() == [], (
            f"{point.module} imports {done.stdout.strip()}; import it in the target's module"
        )

    def test_is_accepted(self) -> None:
        """The host takes the plugin: entry point, API version, hooks and what they return."""
        record = next(r for r in self._host().records if r.name == self.plugin)
        assert record.state == "loaded", record.reason

    def test_validates(self) -> None:
        """`forge-host plugins validate` finds no error (components of `not_here` aside)."""
        absent = [f"`{self.plugin}/{key.partition(':')[2]}`" for key in self.not_here]
        errors = [p for p in validate(self.plugin) if p.level == "error"]
        found = [f"{p.message}; {p.fix}" for p in errors if not any(ref in p.message for ref in absent)]
        assert not found, "\n".join(found)

    def test_declares_the_same_twice(self) -> None:
        """Declaring has no state: a second host gets equal records."""
        first, second = ([e.spec for e in self._entries(self._host())] for _ in range(2))
        assert first == second

    def test_targets_resolve(self) -> None:
        """Every target, and every separate config class, can be imported and called."""
        problems = []
        for key, entry in self._importable():
            try:
                if not callable(load_target(entry)) and entry.kind != "dataset":
                    problems.append(f"{key}: `{entry.spec.target}` is not callable")
                config_class(entry)
            except PluginError as error:
                problems.append(str(error))
        assert not problems, "\n".join(problems)

    def test_config_round_trips(self) -> None:
        """The settings survive being written to a file and read again, as in `config.resolved.yaml`."""
        problems = []
        for key, _, cls in self._configured():
            try:
                config = structure(cls, self.configs.get(key), key)
                again = structure(cls, json.loads(json.dumps(to_plain(config))), key)
            except (ForgeError, TypeError) as error:
                problems.append(f"{key}: {error}; give values for its required settings in `configs`")
                continue
            if to_plain(again) != to_plain(config):
                problems.append(f"{key}: {to_plain(config)} became {to_plain(again)}")
        assert not problems, "\n".join(problems)

    def test_unknown_key_is_rejected(self) -> None:
        """A mistyped key is an error, not silence."""
        accepted = []
        for key, entry in self._importable():
            values = {**self.configs.get(key, {}), "no_such_key": 1}
            try:
                self._host().configure(entry.kind, Use(entry.ref, values))
            except UsageError as error:
                assert "no_such_key" in str(error), f"{key}: the error does not name the key: {error}"
            else:
                accepted.append(key)
        assert not accepted, f"these take any key (a `**kwargs`?): {', '.join(accepted)}"

    def test_every_field_has_help(self) -> None:
        """Each setting says what it is; a number of seconds, tokens or bytes also its unit."""
        problems = []
        for key, _, cls in self._configured():
            for row in describe(cls):
                if not row.help:
                    problems.append(f"{key}: `{row.name}` has no help; write `= field(help=..., ...)`")
                elif _NUMBER.search(row.type) and not row.unit and _QUANTITY.search(row.name):
                    problems.append(f'{key}: `{row.name}` has no unit; write `field(unit="s", ...)`')
        assert not problems, "\n".join(problems)

    def test_pickles_by_reference(self) -> None:
        """Classes and settings reach another process by name, so they must be module-level."""
        problems = []
        for key, entry in self._importable():
            target, cls = load_target(entry), config_class(entry)
            try:
                assert pickle.loads(pickle.dumps(target)) is target, f"{key}: another object came back"
                if cls is not None:
                    config: Any = structure(cls, self.configs.get(key), key)
                    assert to_plain(pickle.loads(pickle.dumps(config))) == to_plain(config), (
                        f"{key}: its settings changed"
                    )
            except (ForgeError, pickle.PicklingError, AttributeError, TypeError) as error:
                problems.append(f"{key}: {error}")
        assert not problems, "\n".join(problems)

    def test_algorithms_name_what_exists(self) -> None:
        """Each algorithm builds, and the components it names are there and take the values it gives."""
        host, problems = self._host(), []
        for key, entry, cls in self._configured():
            if entry.kind != "algorithm":
                continue
            try:
                parts = structure(cls, self.configs.get(key), key).build()
                assert isinstance(parts, AlgorithmParts), f"{key}: build() returned {type(parts).__name__}"
                host.configure("loss", parts.loss)
                host.configure("advantage", parts.advantage)
                host.configure("sampler", parts.sampler)
            except ForgeError as error:
                problems.append(f"{key}: {error}")
        assert not problems, "\n".join(problems)

    def _host(self) -> PluginHost:
        return PluginHost.load((self.plugin,), strict=True)

    def _entries(self, host: PluginHost) -> list[Entry]:
        return [e for e in host._entries() if e.plugin == self.plugin]

    def _importable(self) -> Iterator[tuple[str, Entry]]:
        """Components with their "kind:name", those of `not_here` left out."""
        for entry in self._entries(self._host()):
            key = f"{entry.kind}:{entry.spec.name}"
            if key not in self.not_here:
                yield key, entry

    def _configured(self) -> Iterator[tuple[str, Entry, type[Any]]]:
        """Components that have an attrs class of settings."""
        for key, entry in self._importable():
            cls = config_class(entry)
            if cls is not None:
                yield key, entry, cls
