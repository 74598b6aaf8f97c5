"""Small trials of sweeps, and results of runs without times."""

import jax
import numpy as np

from fedvg_jax.config import Config

BASE = Config(rounds=4, clients=6, local_epochs=1, eval_every=2, weighting="uniform")
"""Settings of a run of a second."""


def timeless(records) -> list[dict]:
    """Records without the seconds, which differ from run to run."""
    kept = []
    for record in records:
        kept.append({name: value for name, value in record.items() if name != "seconds"})
    return kept


def assert_equal_runs(one, other) -> None:
    """The same records and the same final model, in every bit."""
    assert timeless(one.records) == timeless(other.records)
    jax.tree.map(np.testing.assert_array_equal, one.variables, other.variables)


def histories(results) -> dict[str, list[dict]]:
    """Name of a trial -> its records without seconds."""
    return {r.name: timeless(r.result.records) for r in results}
