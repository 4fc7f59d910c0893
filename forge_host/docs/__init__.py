"""The documentation site: pages written by hand (`pages/`), and references made from the code when it is built.

    from forge_host.docs import pages

    pages()["reference/hooks.md"]        # Markdown

`make docs` builds it with mkdocs-material into `forge_host/docs/site`. Not part of the wheel.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

#: Generated page -> "module:function" that returns its Markdown.
GENERATED: dict[str, str] = {
    "reference/cli.md": "forge_host.docs.cli:page",
    "reference/config.md": "forge_host.docs.config:page",
    "reference/components.md": "forge_host.docs.components:page",
    "reference/hooks.md": "forge_host.docs.hooks:page",
    "reference/api.md": "forge_host.docs.api:page",
    "reference/metrics.md": "forge_host.docs.metrics:page",
    "reference/recipes.md": "forge_host.docs.recipes:page",
    "migration.md": "forge_host.docs.migration:page",
}


def pages() -> dict[str, str]:
    """Every generated page by its path in the site."""
    made = {}
    for path, target in GENERATED.items():
        module, _, name = target.partition(":")
        make: Callable[[], str] = getattr(import_module(module), name)
        made[path] = make()
    return made
