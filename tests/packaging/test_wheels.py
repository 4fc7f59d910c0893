"""What the built wheels contain, and that each works with nothing but the host beside it."""

from __future__ import annotations

import email
import json
import zipfile
from configparser import ConfigParser

import pytest
from distributions import PLUGINS, PROJECTS, REPO, Site

HEAVY = {"torch", "vllm", "monarch", "transformers", "torchtitan"}


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_host_wheel_has_its_data_and_nothing_else(wheels):
    files = contents(wheels["forge-host"])
    assert {name.split("/")[0].split("-")[0] for name in files} == {"forge_host"}
    for folder, pattern in (("recipes", "*.yaml"), ("templates", "*/*.tmpl")):
        here = {str(path.relative_to(REPO)) for path in (REPO / "forge_host" / folder).glob(pattern)}
        assert here and here <= files.keys()
    assert "forge_host/py.typed" in files
    assert not [name for name in files if "__pycache__" in name or name.endswith(".pyc")]
    (license_file,) = (name for name in files if name.endswith("licenses/LICENSE"))
    assert files[license_file] == (REPO / "LICENSE").read_bytes()
    points = ConfigParser()
    points.read_string(next(text for name, text in files.items() if name.endswith("entry_points.txt")).decode())
    assert points["console_scripts"]["forge-host"] == "forge_host.cli.main:main"
    assert points["pytest11"]["forge_host"] == "forge_host.testing.plugin"


@pytest.mark.parametrize("name", [name for name in PROJECTS if name != "forge-reward-brevity"])
def test_wheel_metadata(wheels, name):
    """All but the example, which shows how little a third party has to write."""
    files = contents(wheels[name])
    metadata = email.message_from_bytes(next(text for path, text in files.items() if path.endswith("/METADATA")))
    assert metadata["Name"] == name
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert len(metadata.get_payload()) > 100, "the README is not in the wheel"
    tops = {path.split("/")[0] for path in files if ".dist-info/" not in path}
    assert len(tops) == 1, f"a wheel brings one package, this one has {sorted(tops)}"


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_wheel_is_typed_and_has_no_tests(wheels, name):
    files = contents(wheels[name])
    package = name.replace("-", "_")
    assert f"{package}/py.typed" in files
    assert not [path for path in files if path.split("/")[-1].startswith(("test_", "conftest"))]


def test_host_alone_lists_no_plugin(host_site: Site):
    done = host_site.forge_host("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert names(done.stdout) <= {"builtin"}


def test_host_needs_no_heavy_module_for_help(host_site: Site):
    code = f"import sys; from forge_host.cli.main import main; main(['--help']); print({HEAVY!r} & set(sys.modules))"
    done = host_site.python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert done.stdout.startswith("Usage: forge-host")


@pytest.mark.parametrize("name", [name for name in PROJECTS if name != "forge-host"])
def test_plugin_alone_with_the_host(wheels, others, tmp_path, name):
    """One wheel beside the host's: it is listed, it is accepted, and loading its declaration imports nothing heavy."""
    site = Site(tmp_path / "site", others)
    site.install(wheels["forge-host"], wheels[name])
    listed = site.forge_host("plugins", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    (plugin,) = names(listed.stdout) - {"builtin"}
    if name.startswith("forge-plugin-"):
        assert plugin == name.removeprefix("forge-plugin-")
    code = (
        "import sys\n"
        "from forge_host.plugins import PluginHost\n"
        f"host = PluginHost.load(({plugin!r},), strict=True)\n"
        f"record = next(r for r in host.records if r.name == {plugin!r})\n"
        f"print(record.state, sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    loaded = site.python("-c", code)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.strip() == "loaded []"
    validated = site.forge_host("plugins", "validate", plugin)
    assert validated.returncode == 0, validated.stdout + validated.stderr


def test_example_reward_is_used_by_name_after_installing_its_wheel(wheels, others, tmp_path):
    """A third party's wheel, installed beside the host and the quickstart's plugins; nothing else changes."""
    site = Site(tmp_path / "site", others)
    quickstart = ["grpo", "math", "vllm", "titan", "smollm2"]
    site.install(*(wheels[name] for name in ("forge-host", *(f"forge-plugin-{name}" for name in quickstart))))
    chosen = ["quickstart", "--plugins", ",".join([*quickstart, "brevity"])]
    chosen += ["--set", "rewards=[math, {use: brevity, weight: 0.1, budget: 24}]"]
    before = site.forge_host("config", "show", *chosen)
    assert before.returncode == 3
    assert "plugin `brevity` is not installed" in before.stderr
    site.install(wheels["forge-reward-brevity"])
    after = site.forge_host("config", "show", *chosen)
    assert after.returncode == 0, after.stderr
    assert "brevity" in after.stdout and "budget: 24" in after.stdout
    code = (
        "from forge_host.testing import load_component\n"
        "print(load_component('reward', 'brevity', {'budget': 10})(length=5))\n"
    )
    assert site.python("-c", code).stdout.strip() == "0.5"


def names(text):
    """Names in the output of `plugins list --json`."""
    rows = json.loads(text)
    rows = rows["plugins"] if isinstance(rows, dict) else rows
    return {row["name"] for row in rows}
