"""What a run was made from: manifest.json in its folder, to tell years later why two runs differ."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition

PACKAGES = ("fedvg_jax", "jax", "flax", "optax", "numpy")


def sources(arrays: Arrays, partition: Partition) -> dict[str, str]:
    """Digests of the data (images, labels) and of the partition (every client's rows of each part)."""
    rows = (mine for part in partition for mine in part)
    return {"data": cache.digest(arrays.x, arrays.y), "partition": cache.digest(*rows)}


def code() -> dict[str, Any]:
    """Versions, and the commit this package is checked out at: null where it is installed from elsewhere."""
    return {"versions": versions(), "git": _git(Path(__file__).parent)}


def machine() -> dict[str, Any]:
    """System, Python, back end and devices."""
    devices = jax.devices()
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "backend": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def versions() -> dict[str, str]:
    """Of the packages that a number may depend on."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def _git(folder: Path) -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", __file__)  # not some repository that happens to be around it
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None
