"""The lock: what it holds, what counts as a difference, and rebuilding plugins in another process."""

from __future__ import annotations

import subprocess
import sys

import attrs
import pytest

from forge_host.errors import PluginError, UsageError
from forge_host.plugins import PluginHost, PluginLock
from forge_host.testing.dists import reward_source


@pytest.fixture
def host(install):
    install("wheel", reward_source("wheel"), version="1.2")
    install("edit", reward_source("edit"), editable=True)
    return PluginHost.load(["wheel", "edit"], strict=True)


def plugin(lock, name):
    return next(plugin for plugin in lock.plugins if plugin.name == name)


def test_contents(host):
    lock = host.lock()
    assert [p.name for p in lock.plugins] == ["builtin", "edit", "wheel"]
    wheel = plugin(lock, "wheel")
    assert (wheel.distribution, wheel.version, wheel.entry_point) == ("forge-plugin-wheel", "1.2", "fake_wheel")
    assert [p.editable for p in lock.plugins if p.name != "builtin"] == [True, False]
    assert all(len(p.sha256) == 64 for p in lock.plugins)
    assert (lock.api, lock.python) == ("1.0", ".".join(map(str, sys.version_info[:3])))


def test_round_trip_and_stability(host, tmp_path):
    lock = host.lock()
    lock.write(tmp_path / "plugins.lock")
    again = PluginLock.read(tmp_path / "plugins.lock")
    assert again == lock == host.lock()
    assert lock.differences(again) == []
    lock.check(again, "here")


def test_unreadable_locks(tmp_path):
    with pytest.raises(UsageError, match="nothing.lock: the lock cannot be read: No such file"):
        PluginLock.read(tmp_path / "nothing.lock")
    (tmp_path / "x.lock").write_text("{")
    with pytest.raises(UsageError, match="x.lock: not a plugins.lock: "):
        PluginLock.read(tmp_path / "x.lock")
    (tmp_path / "x.lock").write_text('{"host": "1", "extra": 1}')
    with pytest.raises(UsageError, match="x.lock: key `extra` is unknown"):
        PluginLock.read(tmp_path / "x.lock")


def test_editing_an_editable_install_is_seen(host, install):
    lock = host.lock()
    (install.root / "fake_edit.py").write_text(reward_source("edit") + "# changed")
    (difference,) = lock.differences(host.lock())
    assert difference.startswith("plugin `edit` (forge-plugin-edit 1.0) has other source files (hash ")


def test_another_record_of_the_same_version_is_seen(host, install):
    lock = host.lock()
    install("wheel", reward_source("wheel") + "# rebuilt", version="1.2")
    (difference,) = lock.differences(host.lock())
    assert difference.startswith("plugin `wheel` (forge-plugin-wheel 1.2) has other files")


def test_what_differs_between_two_installs_of_one_wheel_does_not_count(host, install):
    lock = host.lock()
    record = next(install.root.glob("forge_plugin_wheel-*/RECORD"))
    notes = "../../bin/forge-x,sha256=abc,10\n__pycache__/fake_wheel.cpython-311.pyc,,\n"
    info = record.parent.name
    text = record.read_text().replace(f"{info}/INSTALLER,sha256=", f"{info}/INSTALLER,sha256=other")
    record.write_text(notes + text)
    assert lock.differences(host.lock()) == []


def test_differences_are_sentences(host):
    lock = host.lock()
    wheel = plugin(lock, "wheel")
    edit = attrs.evolve(plugin(lock, "edit"), version="9", distribution="forked-edit")
    extra = attrs.evolve(wheel, name="extra", distribution="forge-plugin-extra")
    other = attrs.evolve(
        lock, host="9.9", python="3.99.1", torch=None, monarch="0.8.1", plugins=(lock.plugins[0], edit, extra),
        files={"/a.py": "0"},
    )  # fmt: skip
    assert lock.differences(other) == [
        f"forge-host is 9.9, the lock has {lock.host}",
        f"Python is 3.99.1, the lock has {lock.python}",
        f"torch is not installed, the lock has {lock.torch}",
        f"monarch is 0.8.1, the lock has {lock.monarch}",
        "plugin `edit` is forked-edit 9, the lock has forge-plugin-edit 1.0",
        "plugin `extra` (forge-plugin-extra 1.2) is not in the lock",
        "plugin `wheel` (forge-plugin-wheel 1.2) of the lock is not loaded",
        "file /a.py is not in the lock",
    ]
    with pytest.raises(PluginError, match="^host gpu2: plugins differ from the lock: forge-host is 9.9.*plugin `edit`"):
        lock.check(other, "host gpu2")


def test_builds_and_patch_releases_may_differ(host):
    lock = attrs.evolve(host.lock(), torch="2.13.0+cpu", python="3.11.4")
    assert lock.differences(attrs.evolve(lock, torch="2.13.0+cu130", python="3.11.9")) == []
    assert lock.differences(attrs.evolve(lock, torch="2.13.1+cpu")) == ["torch is 2.13.1+cpu, the lock has 2.13.0+cpu"]


def test_another_process_rebuilds_the_same_plugins(host, install, tmp_path):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def score(response): return 1.0")
    one_file = tmp_path / "one.py"
    one_file.write_text(reward_source("one"))
    host = PluginHost.load(["wheel"], files=[str(one_file)], strict=True)
    host.find("reward", f"{rewards}:score")
    path = tmp_path / "plugins.lock"
    host.lock().write(path)
    code = (
        "import sys; from forge_host.plugins import PluginHost, PluginLock\n"
        f"host = PluginHost.from_lock(PluginLock.read({str(path)!r}), 'worker 3')\n"
        "print([e.ref for e in host.entries('reward')], [m for m in ('torch', 'monarch') if m in sys.modules])"
    )

    def worker():
        return subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(install.root)!r})\n{code}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    done = worker()
    assert done.stdout == "['one/one', 'wheel/wheel'] []\n", done.stderr
    rewards.write_text("def score(response): return 2.0")
    one_file.write_text(reward_source("one") + "# changed")
    install("wheel", reward_source("wheel"), version="1.3")
    (next(install.root.glob("forge_plugin_wheel-1.2*")) / "METADATA").unlink()
    error = worker().stderr.splitlines()[-1]
    assert "worker 3: plugins differ from the lock" in error
    assert "plugin `wheel` is forge-plugin-wheel 1.3, the lock has forge-plugin-wheel 1.2" in error
    assert f"plugin `one` ({one_file}) has other files" in error
    assert f"file {rewards} has changed since the lock was written" in error


def test_a_worker_without_the_plugin_says_so_by_name(host):
    lock = host.lock()
    gone = attrs.evolve(plugin(lock, "wheel"), name="gone-plugin")
    with pytest.raises(PluginError, match="^worker 3: plugins of the lock cannot be .*`gone-plugin` is not installed"):
        PluginHost.from_lock(attrs.evolve(lock, plugins=(*lock.plugins, gone)), "worker 3")


def test_a_rebuilt_host_loads_nothing_more(host, install):
    install("later", reward_source("later"))
    rebuilt = PluginHost.from_lock(host.lock())
    with pytest.raises(PluginError, match="no reward is named `later/later`; plugin `later`.* is not selected"):
        rebuilt.find("reward", "later/later")


def test_the_lock_refuses_a_distribution_without_sources(install):
    install("nosource", reward_source("x"), record=False)
    host = PluginHost.load(["nosource"], strict=True)
    assert plugin(host.lock(), "nosource").editable is False
    (install.root / "fake_nosource.py").unlink()
    with pytest.raises(PluginError, match="the source files of `fake_nosource` are not found"):
        import importlib

        del sys.modules["fake_nosource"]
        importlib.invalidate_caches()
        host.lock()
