"""Lets the tests import `titan_helpers` under --import-mode=importlib, in spawned processes too."""

import os
import sys

HERE = os.path.dirname(__file__)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (HERE, os.environ.get("PYTHONPATH", "")) if p)
