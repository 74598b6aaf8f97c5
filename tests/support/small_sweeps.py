"""Small trials of sweeps, objects for them, and results of runs without times."""

import jax
import numpy as np

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.core.types import Hyperparameter

BASE = Config(rounds=4, clients=6, local_epochs=1, eval_every=2, weighting="uniform")
"""Settings of a run of a second."""


def power(exponent):
    """Returns a weighting proportional to the sample counts to a power, which it reads from here."""
    return lambda task: fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** exponent
    )


def root(task):
    """Weights proportional to the roots of the sample counts."""
    return power(0.5)(task)


def tempered(task):
    """Weights n_k^T, normalised."""
    rule = fv.weightings.by_scalar(
        lambda hyper, client, data: client.num_samples.astype(float) ** hyper["T"]
    )
    return rule._replace(hyperparameters=(Hyperparameter("T", 1.0, 0.0, 4.0),))


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
