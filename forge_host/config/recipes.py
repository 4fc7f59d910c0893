"""Configurations by path, or by name for the recipes shipped with the host (`quickstart`).

    read_config("quickstart")[0].plain["model"]
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
    """The file of a configuration: an existing path, else the recipe of that name.

    Raises:
        UsageError: neither exists.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    names = recipe_names()
    if str(name) in names:
        return Path(str(files("forge_host") / "recipes" / f"{name}.yaml"))
    if path.is_dir():
        raise UsageError(f"configuration {name} is a folder", fix="name a YAML file in it")
    fix = did_you_mean(str(name), names) or f"give a YAML file or one of the recipes {listing(names)}"
    raise UsageError(f"configuration {name} does not exist", fix=fix)


def read_config(config: ConfigName | Sequence[ConfigName] | None) -> list[Item]:
    """The trees of one or several configurations, in the given order."""
    if config is None:
        return []
    names = [config] if isinstance(config, (str, Path)) else list(config)
    trees = []
    for name in names:
        path = find_config(name)
        is_recipe = path.name == f"{name}.yaml" and str(path) != str(name)
        trees.append(load_file(path, f"{name}.yaml" if is_recipe else str(name)))
    return trees
