"""Installed distributions made in a folder, for tests of what a plugin host does with good and broken ones.

    write_dist(tmp_path, "forge-plugin-x", {"x": "plugin_x"}, {"plugin_x": "FORGE_API = '1.0'"})
    monkeypatch.syspath_prepend(str(tmp_path))       # `discover()` now finds it

No build and no pip: a `.dist-info` folder with METADATA, entry_points.txt and RECORD is what an installed wheel is.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

GROUP = "forge_host.plugins"
#: The first lines of a declaration module.
HEADER = """
import attrs
from forge_host.api import CommandSpec, ComponentSpec, Finding, ForgePlugin, RunError, field, hookimpl
FORGE_API = "1.0"
"""


def reward_source(name: str) -> str:
    """A declaration module that offers one reward, whose target stands in the same module."""
    return (
        HEADER
        + f"""
@attrs.frozen
class Reward:
    scale: float = field(default=1.0, help="multiplies the score")

    def __call__(self, response):
        return self.scale * len(response)

@hookimpl
def forge_rewards(host):
    return [ComponentSpec({name!r}, f"{{__name__}}:Reward", "length of the response")]
"""
    )


def write_dist(
    root: str | Path,
    name: str,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
    version: str = "1.0",
    *,
    editable: bool = False,
    record: bool = True,
) -> Path:
    """Writes a distribution into `root` and returns its `.dist-info` folder.

    Args:
        entry_points: name to value, of the group `forge_host.plugins`.
        modules: dotted module name to source; `pkg` with `pkg.sub` becomes a package.
        editable: leave the sources out of RECORD and mark the install as editable, as pip does.
        record: False writes no RECORD, as some system packages have none.
    """
    root = Path(root)
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    sources = {_file(module, modules): source for module, source in modules.items()}
    entries = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
    own = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "entry_points.txt": f"[{GROUP}]\n{entries}" if entries else "",
        "INSTALLER": "write_dist\n",
    }
    if editable:
        own["direct_url.json"] = json.dumps({"url": root.resolve().as_uri(), "dir_info": {"editable": True}})
    for path, text in sources.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for filename, text in own.items():
        (info / filename).write_text(text, encoding="utf-8")
    if record:
        listed = {f"{info.name}/{filename}": text for filename, text in own.items()} | ({} if editable else sources)
        lines = [f"{path},{_hash(text)},{len(text.encode())}" for path, text in sorted(listed.items())]
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,", ""]), encoding="utf-8")
    return info


def _file(module: str, modules: Mapping[str, str]) -> str:
    path = module.replace(".", "/")
    is_package = any(other.startswith(f"{module}.") for other in modules)
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def _hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
