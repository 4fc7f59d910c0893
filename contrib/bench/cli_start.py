"""How long `forge-host plugins list` takes with thirty installed plugins, and `forge-host --help`: whole processes.

    python contrib/bench/cli_start.py --runs 15

Prints the median and the fastest of each in seconds, beside an empty interpreter's, and the median of processor
seconds, which a busy machine changes less. The plugins are fake distributions in a temporary folder whose modules raise
when imported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from forge_host.testing.dists import write_dist

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "plugins list": ["-m", "forge_host.cli.main", "plugins", "list"],
    "--help": ["-m", "forge_host.cli.main", "--help"],
    "--version": ["-m", "forge_host.cli.main", "--version"],
}


def seconds(arguments: list[str], path: str) -> tuple[float, float]:
    """Wall-clock and processor seconds of one process."""
    start, used = time.perf_counter(), os.times()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    return time.perf_counter() - start, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--plugins", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.plugins):
            name, module = f"many-{number}", f"many_{number}"
            write_dist(folder, f"forge-plugin-{name}", {name: module}, {module: "raise RuntimeError"})
        print(f"{'command':16}  median s  fastest s  processor s")
        for name, arguments in COMMANDS.items():
            wall, cpu = zip(*(seconds(arguments, folder) for _ in range(options.runs)), strict=True)
            print(f"{name:16}  {statistics.median(wall):8.3f}  {min(wall):9.3f}  {statistics.median(cpu):11.3f}")


if __name__ == "__main__":
    main()
