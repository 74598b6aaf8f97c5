"""manifest.json: data, code and machine of a run, so that later differences between runs can be explained."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedvg_jax
from fedvg_jax.core.identity import identify
from fedvg_jax.core.types import Batch, Tree, UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import client_rows
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

    That is digests of the data (images, labels), of the partition, of the clients' rows, and of external validation
    images if any; of what is remembered of a client not sampled yet; of frozen tensors; and the hyperparameters that
    the settings do not name, as a line of text.

    Args:
        arrays: the data set.
        partition: every client's rows of each part are part of the digest.
        pool: the run's pool; its rows behind the rows of `arrays` are an external validation set.
        hyper: name -> value, of functions that the user passed.
        state: NumPy arrays, of a client not sampled yet, if it has values of a given model. A model made from the seed
            may differ in its last bits between machines.
        base: NumPy arrays, the frozen tensors of the model; None where it is trained as a whole.
    """
    rows = (rows_of_client for part in partition for rows_of_client in part)
    encoding = () if arrays.table is None else (identify(arrays.table._asdict()).digest,)
    data = cache.digest(arrays.x, arrays.y, *encoding)
    digests = {"data": data, "partition": cache.digest(*rows)}
    if len(partition.val) == len(partition.test) == len(partition.train):
        digests["clients"] = cache.digest(_owners(partition, len(arrays.y)))
    if len(pool.y) > len(arrays.y):
        external = (np.asarray(member[len(arrays.y) :]) for member in (pool.x, pool.y))
        digests["validation"] = cache.digest(*external)
    if base is not None:
        digests["frozen_base"] = cache.digest(*jax.tree.leaves(base))
    leaves = jax.tree.leaves(client_state)
    return {
        **digests,
        "initial_model": cache.digest(*leaves) if leaves else "",
        "hyperparameters": ", ".join(f"{name}={value!r}" for name, value in sorted(hyper.items())),
    }


def refuse_other_base(run: Path | None, base: Tree) -> None:
    """Raises UsageError unless a run that trained a part of a model had these frozen tensors."""
    if run is None:
        raise UsageError(
            "these are trained tensors of a run; name its folder, as in sim.whole(old.variables, old.folder), so that"
            " its frozen ones are compared"
        )
    manifest = files.read_object_if_any(run / "manifest.json")
    if manifest.get("frozen_base") != cache.digest(*jax.tree.leaves(jax.device_get(base))):
        raise UsageError(
            f"{run} ran on another frozen base (its manifest.json); give the settings and files it ran on"
        )


def _owners(partition: Partition, num_rows: int) -> np.ndarray:
    """Returns the client of every row, int32 [T], -1 for none. It does not depend on the split of a client's rows."""
    owners = np.full(num_rows, -1, np.int32)
    for part in partition:
        owners[client_rows.joined(part)] = np.repeat(
            np.arange(len(part), dtype=np.int32), client_rows.sizes(part)
        )
    return owners


def write_manifest(
    folder: Path,
    digests: Mapping[str, str],
    given: Mapping[str, str],
    code: Mapping[str, str] = {},
    num_done: int = 0,
    log: Callable[[str], None] = lambda line: None,
) -> None:
    """Writes manifest.json, with an entry for another part of the run.

    Args:
        folder: of the run.
        digests: see `sources`.
        given: objects from Python, by the setting that they replace -> their names; "" for one without.
        code: digests of their functions and values, and of metrics; see `given.code_of`.
        num_done: rounds before this part.
        log: called with a line if code or machine differ from the part before.
    """
    path = folder / "manifest.json"
    parts = files.read_object(path)["runs"] if path.exists() else []
    this_part = {
        "from_round": num_done + 1,
        "versions": versions(),
        "git": _git(Path(__file__).parent),
        **machine(),
    }
    entries = {
        **digests,
        "custom": dict(sorted(given.items())),
        "code": dict(sorted(code.items())),
        "runs": [*parts, this_part],
    }
    run_folder.write_json(path, entries)
    compared = ("versions", "backend", "device", "devices")
    if changed := [name for name in compared if parts and parts[-1].get(name) != this_part[name]]:
        listed = "; ".join(f"{name} {parts[-1].get(name)} -> {this_part[name]}" for name in changed)
        log(f"later rounds may differ by rounding: {listed}")


def machine() -> dict[str, Any]:
    """Returns the system, Python version, processor, back end and devices."""
    devices = jax.devices()
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "backend": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
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
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        # fails in an unrelated repository around the installation
        git("ls-files", "--error-unmatch", __file__)
        return {
            "commit": git("rev-parse", "HEAD"),
            "changed": bool(git("status", "--porcelain", "--", ".")),
        }
    except (OSError, subprocess.SubprocessError):
        return None
