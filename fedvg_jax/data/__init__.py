"""Data as NumPy arrays: one reader per source, a cache of decoded sets, and the partition over clients. No jax here."""

from __future__ import annotations

from pathlib import Path

from fedvg_jax.data import cifar, digits, npz
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.types import UsageError

HOLDS = {
    "cifar10": f"{cifar.LAYOUT} ({cifar.SOURCE})",
    "npz": f"one .npz file with {npz.LAYOUT}",
}
"""What `--data-dir` must hold, for every dataset that reads it."""

NAMES = ("digits", *HOLDS)


def load(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Arrays:
    """The dataset called `name`.

    Args:
        name: one of `NAMES`; "digits" comes with scikit-learn and needs no folder.
        data_dir: the folder (or .npz file) holding the data.
        cache_dir: where the decoded set is kept; None keeps nothing.

    Raises:
        UsageError: unknown name, missing folder, or files that are missing or damaged.
    """
    if name == "digits":
        return digits.load()
    if name not in HOLDS:
        raise UsageError(f"dataset must be one of {', '.join(NAMES)}, got {name!r}")
    if data_dir is None:
        raise UsageError(f"dataset {name} needs --data-dir DIR, a folder holding {HOLDS[name]}")
    reader = {"cifar10": cifar.load, "npz": npz.load}[name]
    return reader(Path(data_dir), cache_dir)
