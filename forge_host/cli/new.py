"""`forge-host new`: writes a plugin package that works before it is edited.

    forge-host new brevity --kind reward
    cd forge-plugin-brevity && pip install -e . && pytest

The texts are files under `forge_host/templates/`: `common/` for every package, one folder a kind for the component and
its test. `$name`-style placeholders are filled in by `string.Template`; nothing else is generated.
"""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import click

from forge_host import API_VERSION, __version__
from forge_host.errors import UsageError
from forge_host.hookspecs import KIND_HOOKS
from forge_host.plugins.discovery import discover
from forge_host.types import KINDS, NAME, Kind

PREFIX = "forge-plugin-"
#: What each template's example does, as it appears in the component tables.
SUMMARIES: dict[Kind, str] = {
    "reward": "shorter responses score higher",
    "loss": "clipped policy gradient",
    "advantage": "reward minus the group's mean",
    "sampler": "drops groups whose rewards are alike",
    "dataset": "asks for the next number",
    "environment": "asks again after a wrong reply",
    "generator": "samples from a table of next-token probabilities",
    "trainer": "trains a table of next-token probabilities",
    "transport": "weights through files",
    "tracker": "one metric a step, tab-separated",
    "launcher": "every process on this host",
    "router": "the less loaded of two replicas drawn at random",
    "model": "a local Hugging Face folder",
    "algorithm": "clipped policy gradient with a group baseline",
}
#: Kinds whose package has components of other kinds too, and those whose settings stand in a light module of their own.
COMPANIONS: dict[Kind, tuple[Kind, ...]] = {"algorithm": ("loss", "advantage")}
SEPARATE_CONFIG: tuple[Kind, ...] = ("generator", "trainer")
#: Monarch has no type information; a package whose code uses it says so to mypy.
MYPY_OVERRIDES = """
[[tool.mypy.overrides]]
module = "monarch.*"
ignore_missing_imports = true

[[tool.mypy.overrides]]
module = "$package.*"
disallow_untyped_decorators = false
"""
USES_MONARCH: tuple[Kind, ...] = ("generator", "trainer", "launcher")
MAX_NAME_LENGTH = 32
#: How a run chooses the component, where it is not `KIND=NAME`.
USAGE: dict[Kind, str] = {
    "reward": "rewards=$name",
    "dataset": "dataset.path=$name",
    "router": "services.generator.router=$name",
    "tracker": "'trackers=[console, jsonl, $name]'",
}


@click.command(short_help="Write a plugin package that works unedited.")
@click.argument("name")
@click.option("--kind", required=True, type=click.Choice(KINDS), help="What the plugin's component is.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    show_default=True,
    help="Folder in which the package's folder is made.",
)
def new(name: str, kind: Kind, output: Path) -> None:
    """Write the package forge-plugin-NAME with a component NAME of the given kind, its settings and its tests.

    The package passes its tests, mypy --strict, ruff and `forge-host plugins validate` as it is written.
    """
    name = name.removeprefix(PREFIX)
    folder = write_package(name, kind, output)
    click.echo(f"wrote {folder}; next:\n")
    click.echo(f"    cd {folder}\n    pip install -e .\n    forge-host plugins validate {name}\n    pytest\n")
    click.echo(f"then edit src/{module_name(name)}/{kind}.py and use it:\n\n    {usage(name, kind)}")


def module_name(name: str) -> str:
    return (PREFIX + name).replace("-", "_")


def write_package(name: str, kind: Kind, output: Path) -> Path:
    """Write the package and return its folder.

    Raises:
        UsageError: the name is not allowed, or the folder exists.
    """
    if not NAME.match(name):
        guess = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        fix = f"try `{guess}`" if NAME.match(guess) else "use lower-case words joined by `-`"
        raise UsageError(f"`{name}` is not lower-case words joined by `-`, beginning with a letter", fix=fix)
    if name in {record.name for record in discover()} | {"builtin"}:
        raise UsageError(f"a plugin `{name}` is installed here, which yours would collide with", fix="choose another")
    if len(name) > MAX_NAME_LENGTH:
        raise UsageError(f"`{name}` has {len(name)} letters", fix=f"use at most {MAX_NAME_LENGTH}")
    folder = output / f"{PREFIX}{name}"
    if folder.exists():
        raise UsageError(f"{folder} exists and is left as it is", fix="choose another name or --output")
    package = module_name(name)
    kinds: tuple[Kind, ...] = (*COMPANIONS.get(kind, ()), kind)
    values = {
        "name": name,
        "kind": kind,
        "cls": "".join(word.capitalize() for word in name.split("-")),
        "module": name.replace("-", "_"),
        "package": package,
        "distribution": f"{PREFIX}{name}",
        "summary": SUMMARIES[kind],
        "api": API_VERSION,
        "host_requirement": host_requirement(__version__),
        "usage": f"    {usage(name, kind)}",
        "ref": f"{name}/{name}",
        "mypy_overrides": Template(MYPY_OVERRIDES).substitute(package=package) if kind in USES_MONARCH else "",
        "hooks": "\n\n".join(_hook(name, package, each) for each in kinds),
    }
    templates = files("forge_host") / "templates"
    texts = {
        "pyproject.toml": templates / "common" / "pyproject.toml.tmpl",
        "README.md": templates / "common" / "README.md.tmpl",
        f"src/{package}/__init__.py": templates / "common" / "init.py.tmpl",
        f"tests/test_{values['module']}.py": templates / kind / "test.py.tmpl",
    }
    for each in kinds:
        texts[f"src/{package}/{each}.py"] = templates / each / "component.py.tmpl"
        if each in SEPARATE_CONFIG:
            texts[f"src/{package}/config.py"] = templates / each / "config.py.tmpl"
    for path, template in texts.items():
        described = next((k for k in kinds if path.endswith(f"/{k}.py")), kind)
        _write(folder / path, template, {**values, "summary": SUMMARIES[described]})
    (folder / "src" / package / "py.typed").touch()
    return folder


def host_requirement(version: str) -> str:
    """ "forge-host>=0.1,<0.2": this host's minor version and nothing newer, until it is tested."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return f"forge-host>={major}.{minor},<{major}.{minor + 1}"


def _hook(name: str, package: str, kind: Kind) -> str:
    cls = "".join(word.capitalize() for word in name.split("-"))
    arguments = [f'"{name}"', f'"{package}.{kind}:{cls}"', f'"{SUMMARIES[kind]}"']
    if kind in SEPARATE_CONFIG:
        arguments.append(f'config="{package}.config:{cls}Config"')
    if kind == "advantage":  # the template's baseline is the group's mean
        arguments.append('needs=("groups",)')
    body = "".join(f"            {argument},\n" for argument in arguments)
    return (
        f"\n@hookimpl\ndef {KIND_HOOKS[kind]}(host: HostInfo) -> Iterable[ComponentSpec]:\n"
        f"    return [\n        ComponentSpec(\n{body}        )\n    ]"
    )


def usage(name: str, kind: Kind) -> str:
    """The command that uses the component in a run."""
    return "forge-host run quickstart --set " + Template(USAGE.get(kind, f"{kind}=$name")).substitute(name=name)


def _write(path: Path, template: Traversable, values: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = Template(template.read_text(encoding="utf-8")).substitute(values)
    path.write_text(text, encoding="utf-8")
