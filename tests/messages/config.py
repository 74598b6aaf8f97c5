"""Mistakes in the settings of a run."""

import fedvg_jax as fv
from fedvg_jax import config


def check(**settings):
    """Returns the call that checks these settings."""
    return lambda: config.check(fv.Config(**settings))


CASES = [
    ("a number out of range", check(alpha=0.0), "alpha"),
]
