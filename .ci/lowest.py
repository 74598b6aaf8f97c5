"""Prints pip constraints to the lowest versions of the direct dependencies that a pyproject.toml declares."""

import sys
import tomllib
from pathlib import Path

for dependency in tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"][
    "dependencies"
]:
    name, version = dependency.split(">=")
    print(f"{name}=={version}")
