"""Level 2: turning "package.module:Attribute" and "path/file.py:Attribute" into objects, in the process that uses them.

    Brevity = resolve("my_pkg.reward:Brevity", "reward `brevity`")
    module = import_file("rewards.py")

A file becomes a module named `forge_local_<stem>_<hash>`, put into `sys.modules` before its code runs, so that its
classes pickle by reference; the hash covers path and content, so another process that imports the same file gets the
same name, and an edited file a new one. Objects themselves do not travel between processes: references (`Use`) do.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from forge_host.errors import PluginError
from forge_host.plugins.suggest import did_you_mean, listing

#: Importing these takes seconds; a declaration module must not.
HEAVY = ("torch", "vllm", "monarch", "transformers", "torchtitan", "torchstore", "triton", "ray", "jax", "tensorflow")


def is_file_reference(ref: str) -> bool:
    """Whether `ref` names something in a Python file: `./rewards.py:MyReward`."""
    location, _, _ = ref.rpartition(":")
    return (location or ref).endswith(".py")


def local_file(location: str, what: str) -> Path:
    """The absolute path of a Python file that exists, or `PluginError`."""
    path = Path(location).expanduser().resolve()
    if path.is_file():
        return path
    siblings = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    guess = did_you_mean(path.name, siblings)
    raise PluginError(f"file {path} does not exist", where=what, fix=guess or "check the path")


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def import_file(location: str | Path) -> ModuleType:
    """The module of a Python file, run once per content. Errors of its code come out as they are."""
    path = Path(location).expanduser().resolve()
    content = path.read_bytes()
    digest = hashlib.sha256(str(path).encode() + b"\0" + content).hexdigest()[:8]
    name = f"forge_local_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Compiled from what was hashed: Python's cache of byte code goes by time stamps of one second.
        exec(compile(content, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def resolve(target: str, what: str) -> Any:
    """The object that `target` names.

    Args:
        what: the component and its origin, for messages.

    Raises:
        PluginError: the module cannot be imported, or has no such attribute.
    """
    location, _, attribute = target.rpartition(":")
    if not location or not attribute:
        raise PluginError(
            f"target `{target}` is not `package.module:Attribute`", where=what, fix="name the module and the attribute"
        )
    try:
        found: Any = (
            import_file(local_file(location, what)) if location.endswith(".py") else importlib.import_module(location)
        )
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        fix = "run `forge-host plugins doctor`"
        if missing:
            top = missing.partition(".")[0]
            absent = bool(missing_modules([top]))
            fix = f"install the package that provides `{missing}`" if absent else f"`{top}` has no such module"
        raise PluginError(f"`{target}` cannot be imported: {cause(error)}", where=what, fix=fix) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_")]
            fix = did_you_mean(part, names) or f"it has {listing(defined(found), 'nothing public')}"
            raise PluginError(f"`{location}` has no `{part}`", where=what, fix=fix)
        found = getattr(found, part)
    return found


def defined(module: Any) -> list[str]:
    """Public classes and functions that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


def cause(error: BaseException) -> str:
    """ "ImportError: no module named x (my_pkg/reward.py:3)": an error and the last line of code it passed through."""
    text = " ".join(str(error).split())
    machinery = ("<frozen", importlib.__file__, str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(machinery)]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        place = ""  # its text already has file and line
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def missing_modules(requires: Iterable[str]) -> list[str]:
    """Those of `requires` that are not installed; nothing is imported."""
    return [name for name in requires if name not in sys.modules and find_module(name) is None]


def find_module(name: str) -> ModuleSpec | None:
    """The spec of a module, found without importing the packages it is in (`find_spec("a.b")` imports `a`)."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, ValueError):
        return None
    return spec


def locate(target: str) -> str:
    """ "path:line" of a target's definition, nothing imported; "" when not found."""
    location, _, attribute = target.rpartition(":")
    if location.endswith(".py"):
        path: str | None = location
    else:
        spec = find_module(location)
        path = spec.origin if spec is not None and spec.has_location else None
    if path is None or not path.endswith(".py") or not Path(path).is_file():
        return path or ""
    definition = re.compile(rf"\s*(class|def|async def)\s+{re.escape(attribute.rpartition('.')[2])}\b")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next((f"{path}:{number}" for number, line in enumerate(lines, 1) if definition.match(line)), path)
