"""Short forms of the configuration, written out: after this, every layer has one shape and layers can be merged.

`dataset: train.jsonl` becomes `dataset: {path: train.jsonl}`, `trainer: titan` becomes `trainer: {use: titan}`, a
section with an algorithm's name becomes `algorithm: {use: NAME, ...}`, a top-level `ref_model:` moves under
`services`, and `off_by_n` is renamed to `max_policy_age`.

    canonical(load_text("grpo: {beta: 0.1}", "c.yaml"), lambda name: name == "grpo").plain
    # {'algorithm': {'use': 'grpo', 'beta': 0.1}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from forge_host.config.schema import RunConfig, ServiceConfig
from forge_host.config.source import Item
from forge_host.errors import UsageError

#: Top-level sections that choose one component, with the key that names it.
SELECTORS = {
    "algorithm": "use", "loss": "use", "advantage": "use", "sampler": "use", "dataset": "path", "generator": "use",
    "trainer": "use", "transport": "use", "launcher": "use", "environment": "use",
}  # fmt: skip
#: Sections that a plain string may stand for, and the key it sets.
SHORT = {**SELECTORS, "aggregation": "mode", "correction": "mode"}
ROLES = ("generator", "trainer", "ref_model", "reward")
SECTIONS = tuple(field.name for field in attrs.fields(RunConfig) if field.name != "algorithm_config")
#: The configuration of no file at all.
DEFAULTS = RunConfig(model="")
SERVICE_KEYS = frozenset(field.name for field in attrs.fields(ServiceConfig))


def base_name(ref: str) -> str:
    """A section's name for an algorithm reference: "dapo" for "dapo/dapo"."""
    return ref.rsplit("/", 1)[-1]


def same_ref(low: str, high: str) -> bool:
    """Whether two references name one component as far as text tells: equal, or one is the other qualified."""
    return low == high or ("/" not in low or "/" not in high) and base_name(low) == base_name(high)


def is_section(key: str) -> bool:
    """Whether a top-level key holds keys of its own."""
    default = getattr(DEFAULTS, key, None)
    return isinstance(default, Mapping) or attrs.has(type(default))


def canonical(layer: Item, is_algorithm: Callable[[str], bool]) -> Item:
    """One layer's tree in the long form.

    Raises:
        UsageError: two algorithms, or two different values for one key under its two names, in the same layer.
    """
    top: dict[str, Item] = {}
    algorithms: dict[str, Item] = {}
    for key, item in (layer.mapping or {}).items():
        if key not in SECTIONS and key not in ROLES and is_algorithm(key):
            algorithms[key] = item
        elif item.value is None and key in ("rewards", "trackers"):
            top[key] = Item([], item.source)
        elif item.value is None and (key in ROLES or key == "algorithm" or is_section(key)):
            top[key] = Item({}, item.source)
        elif key in SHORT and isinstance(item.value, str):
            top[key] = Item({SHORT[key]: item}, item.source)
        elif key in ("rewards", "trackers") and isinstance(item.value, str):
            top[key] = Item([item], item.source)
        elif key == "plugins" and isinstance(item.value, str):
            top[key] = Item([Item(name, item.source) for name in item.value.split(",") if name], item.source)
        else:
            top[key] = item
    if algorithms:
        top["algorithm"] = _algorithm(top.get("algorithm"), algorithms)
    _move_ref_model(top)
    _rename_off_by_n(top)
    return Item(top, layer.source)


def _algorithm(chosen: Item | None, sections: dict[str, Item]) -> Item:
    (name, section), *others = sections.items()
    if others:
        raise UsageError(
            f"sections `{name}` and `{others[0][0]}` are two algorithms", where=others[0][1].source.where,
            fix="keep one of them",
        )  # fmt: skip
    fields = {} if section.value is None else section.mapping
    if fields is None:
        raise UsageError(
            f"`{name}` is a section with the algorithm's keys, not {section.plain!r}", where=section.source.where
        )
    selected = (chosen.mapping or {}) if chosen else {}
    use = selected.get("use")
    if use is not None and not same_ref(str(use.value), name):
        raise UsageError(
            f"`algorithm: {use.value}` and section `{name}` are two algorithms", where=section.source.where,
            fix=f"rename the section to `{base_name(str(use.value))}` or drop one of them",
        )  # fmt: skip
    return Item({**selected, "use": use or Item(name, section.source), **fields}, section.source)


def _move_ref_model(top: dict[str, Item]) -> None:
    if "ref_model" not in top:
        return
    section = top.pop("ref_model")
    services = dict(top["services"].mapping or {}) if "services" in top else {}
    if "ref_model" in services:
        raise UsageError(
            "`ref_model` stands at the top and under `services`", where=section.source.where, fix="keep one of them"
        )
    top["services"] = Item({**services, "ref_model": section}, section.source)


def _rename_off_by_n(top: dict[str, Item]) -> None:
    training = top["training"].mapping if "training" in top else None
    if not training or training.get("off_by_n") is None:
        return
    training = dict(training)
    value = training.pop("off_by_n")
    other = training.get("max_policy_age")
    if value.value is not None:
        if other is not None and other.value != value.value:
            raise UsageError(
                f"training.off_by_n {value.value} and training.max_policy_age {other.value} are one setting",
                where=value.source.where, fix="keep one of them",
            )  # fmt: skip
        training["max_policy_age"] = value
    top["training"] = Item(training, top["training"].source)
