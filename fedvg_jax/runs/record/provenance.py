"""manifest.json: data, code and machine of a run, so that later differences between runs can be explained."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedvg_jax
from fedvg_jax.data import cache
from fedvg_jax.host import files
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.record import checkpoint, folder as run_folder

PACKAGES = ("jax", "flax", "optax", "numpy")


def sources(sim: Simulation) -> dict[str, str]:
    """Returns what a run depends on besides its settings.

    These are digests of the data, of the partition, of external validation rows, of the frozen tensors, and of the
    state of a client that is not sampled yet; and a line of text with the hyperparameters that no setting names.
    """
    arrays, pool, encoding = sim.arrays, sim.data.pool, ()
    if arrays.table is not None:
        from fedvg_jax.core.identity import identify

        encoding = (identify(arrays.table._asdict()),)
    validation, initial, base = "", (), jax.tree.leaves(checkpoint.to_host(sim.base))
    if len(pool.y) > len(arrays.y):
        validation = cache.digest(*(np.asarray(rows[len(arrays.y) :]) for rows in pool))
    # clients may start from the caller's model; one made from the seed differs in its last bits between machines
    if not sim.experiment.model.is_drawn:
        initial = jax.tree.leaves(checkpoint.to_host(sim.state_placement.fresh))
    hyper = sorted(sim.custom_hyper.items())
    return {
        "data": cache.digest(arrays.x, arrays.y, *encoding),
        "partition": cache.digest(*itertools.chain(*sim.partition)),
        "validation": validation,
        "frozen_base": "" if sim.base is None else cache.digest(*base),
        "initial_model": cache.digest(*initial) if initial else "",
        "hyperparameters": ", ".join(f"{name}={value!r}" for name, value in hyper),
    }


def write_manifest(
    folder: Path,
    digests: Mapping[str, str],
    objects: Mapping[str, str],
    code: Mapping[str, str],
    num_done: int,
    shared_by: str,
) -> bool:
    """Writes manifest.json with an entry for a new segment of the run; returns if versions or devices have changed.

    Args:
        folder: of the run.
        digests: see `sources`.
        objects: argument that takes an object from Python -> the object's name; "" for one without.
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
    manifest = {**digests, "custom": dict(sorted(objects.items()))}
    manifest |= {"code": dict(sorted(code.items())), "runs": [*segments, segment]}
    run_folder.write_json(path, manifest)
    return any(segments and segments[-1].get(name) != value for name, value in that_matter.items())


def devices() -> dict[str, Any]:
    """Returns JAX's back end, and kind and number of its devices."""
    first, *others = jax.devices()
    return {
        "backend": first.platform,
        "device": first.device_kind,
        "devices": 1 + len(others),
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
