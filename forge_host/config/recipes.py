"""Configurations by path, or by name for the recipes shipped with the host (`quickstart`).

    read_config("quickstart")[0].plain["model"]

A file of that name in the current directory is found only by its path, so a recipe always means the shipped one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from forge_host.config.files import load_file
from forge_host.config.source import Item
from forge_host.errors import UsageError
from forge_host.plugins.suggest import did_you_mean, listing

ConfigName = str | Path


def recipe_names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    folder = files("forge_host") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def find_config(name: ConfigName) -> Path:
    """The file of a configuration: the recipe of that name, else an existing path.

    Raises:
        UsageError: neither exists.
    """
    path, names = Path(name).expanduser(), recipe_names()
    if str(name) in names:
        return Path(str(files("forge_host") / "recipes" / f"{name}.yaml"))
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"configuration {name} is a folder", fix="name a YAML file in it")
    beside = [str(path.parent / other.name) for other in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    fix = did_you_mean(str(name), [*names, *beside]) or f"give a YAML file or one of the recipes {listing(names)}"
    raise UsageError(f"configuration {name} does not exist", fix=fix)


def read_config(config: ConfigName | Sequence[ConfigName] | None) -> list[Item]:
    """The trees of one or several configurations, in the given order."""
    if config is None:
        return []
    names = [config] if isinstance(config, (str, Path)) else list(config)
    recipes = recipe_names()
    return [load_file(find_config(name), f"{name}.yaml" if str(name) in recipes else str(name)) for name in names]
