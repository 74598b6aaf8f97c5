"""What clients compute of their training rows once, before the first round: `describe` of algorithm and weighting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedvg_jax.core import checks
from fedvg_jax.core.types import (
    Algorithm,
    Batch,
    ClientRows,
    Describe,
    Described,
    Tree,
    UsageError,
    Weighting,
)


def describe_clients(
    algorithm: Algorithm,
    weighting: Weighting,
    pool: Batch,
    train_rows: Sequence[np.ndarray],
    num_classes: int,
) -> Described:
    """Returns what algorithm and weighting describe of every client, for `Data.described`: NumPy arrays [N, ...].

    Args:
        algorithm, weighting: each may have a `describe`.
        pool: NumPy arrays [T, ...].
        train_rows: for every client, int [n_k], its training rows of the pool.
        num_classes: C, 0 without classes.

    Raises:
        UsageError: a description is empty, not of numbers that the devices can hold, or has other shapes for another
            client.

    >>> from fedvg_jax.algorithms import fedlc
    >>> from fedvg_jax.weightings import uniform
    >>> pool = Batch(np.zeros((4, 2)), np.array([0, 1, 1, 2]))
    >>> describe_clients(fedlc(), uniform(), pool, [np.array([0, 1, 2]), np.array([3])], 3).algorithm.tolist()
    [[1, 2, 0], [0, 0, 1]]
    """

    def of_clients(describe: Describe | None, name: str) -> Tree:
        if describe is None:
            return ()
        entries = []
        for client, rows in enumerate(train_rows):
            with checks.calling(f"{name}.describe"):
                entry = describe(ClientRows(pool.x[rows], pool.y[rows], num_classes))
                entries.append(jax.tree.map(_as_on_devices, entry))
                what = f"{name}.describe: client {client}"
                if not jax.tree.leaves(entry):
                    raise UsageError(f"{what} has {entry!r:.100}; return numbers or arrays")
                checks.expect(entries[-1], entries[0], what, any_float=True)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *entries)

    return Described(
        of_clients(algorithm.describe, "algorithm"), of_clients(weighting.describe, "weighting")
    )


def check(algorithm: Algorithm, weighting: Weighting, described: Described) -> None:
    """Raises UsageError if data of a round lack the descriptions that algorithm or weighting have."""
    for name, part in {"algorithm": algorithm, "weighting": weighting}.items():
        if part.describe and not jax.tree.leaves(getattr(described, name)):
            raise UsageError(
                f"the {name} describes clients, and data.described lacks it; set it with describe_clients"
            )


def _as_on_devices(numbers: Any) -> np.ndarray:
    """Returns numbers as an array in the dtype that it has in JAX.

    Raises:
        TypeError: they are no numbers.
        OverflowError: that dtype cannot hold them.
    """
    leaf = np.asarray(numbers)
    if leaf.dtype.kind not in "biuf":
        raise TypeError(f"{leaf.dtype} is no number")
    with np.errstate(over="ignore"):
        on_device = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
    if not np.allclose(on_device, leaf, equal_nan=True):
        raise OverflowError(f"{on_device.dtype} cannot hold {leaf.max()}; use a float")
    return on_device
