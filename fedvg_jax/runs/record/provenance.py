"""manifest.json: data, code and machine of a run, so that later differences between runs can be explained."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedvg_jax
from fedvg_jax.core.types import Batch, Tree
from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder

PACKAGES = ("jax", "flax", "optax", "numpy")


def sources(
    arrays: Arrays,
    partition: Partition,
    pool: Batch,
    hyper: Mapping[str, float],
    client_state: Tree,
    base: Tree = None,
) -> dict[str, str]:
    """Returns what a run depends on besides its settings.

    These are digests of the data, of the partition, of external validation rows, of the frozen tensors, and of the
    state of a client that is not sampled yet; and a line of text with the hyperparameters that no setting names.

    Args:
        arrays: the data set.
        partition: every client's rows of each part are part of the digest.
        pool: the run's pool; its rows behind the rows of `arrays` are an external validation set.
        hyper: name -> value, of functions that the user passed.
        client_state: NumPy arrays, of a client not sampled yet, if it has values of the caller's model. A model made
            from the seed may differ in its last bits between machines.
        base: NumPy arrays, the frozen tensors of the model; None where it is trained as a whole.
    """
    encoding = ()
    if arrays.table is not None:
        from fedvg_jax.core.identity import identify

        encoding = (identify(arrays.table._asdict()),)
    validation = ""
    if len(pool.y) > len(arrays.y):
        external = [np.asarray(rows[len(arrays.y) :]) for rows in (pool.x, pool.y)]
        validation = cache.digest(*external)
    leaves = jax.tree.leaves(client_state)
    return {
        "data": cache.digest(arrays.x, arrays.y, *encoding),
        "partition": cache.digest(*(rows for part in partition for rows in part)),
        "validation": validation,
        "frozen_base": "" if base is None else cache.digest(*jax.tree.leaves(base)),
        "initial_model": cache.digest(*leaves) if leaves else "",
        "hyperparameters": ", ".join(f"{name}={value!r}" for name, value in sorted(hyper.items())),
    }


def write_manifest(
    folder: Path,
    digests: Mapping[str, str],
    given: Mapping[str, str],
    code: Mapping[str, str] = {},
    num_done: int = 0,
    shared_by: str = "auto",
) -> bool:
    """Writes manifest.json with an entry for a new segment of the run; returns if versions or devices have changed.

    Args:
        folder: of the run.
        digests: see `sources`.
        given: argument that takes an object from Python -> the object's name; "" for one without.
        code: digests of functions from Python by argument, and of metrics.
        num_done: rounds before this segment.
        shared_by: the setting `devices`.
    """
    path = folder / "manifest.json"
    segments = files.read_object_if_any(path).get("runs", [])
    that_matter = {"versions": versions(), **devices(), "shared_by": shared_by}
    segment = {
        "from_round": num_done + 1,
        "git": _git(Path(__file__).parent),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **that_matter,
    }
    objects = {"custom": dict(sorted(given.items())), "code": dict(sorted(code.items()))}
    run_folder.write_json(path, {**digests, **objects, "runs": [*segments, segment]})
    return any(segments and segments[-1].get(name) != value for name, value in that_matter.items())


def devices() -> dict[str, Any]:
    """Returns JAX's back end, and kind and number of its devices."""
    found = jax.devices()
    return {
        "backend": found[0].platform,
        "device": found[0].device_kind,
        "devices": len(found),
    }


@functools.cache  # reads files: 2 ms each
def versions() -> Mapping[str, str]:
    """Returns the versions of the packages that can affect results."""
    return {
        "fedvg_jax": fedvg_jax.__version__,
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


@functools.cache
def _git(folder: Path) -> dict[str, Any] | None:
    """Returns the commit of this package; None where it is installed without its repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # fails in an unrelated repository around the installation
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--porcelain", "--", ".")
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(changed)}
    except (OSError, subprocess.SubprocessError):
        return None
