"""Short texts about a run, for the terminal and the titles of pictures."""

from __future__ import annotations

from fedvg_jax.config import Config, method_title
from fedvg_jax.config.uses import unused
from fedvg_jax.config.weighting_grammar import method_of
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays

SELECTED_ON = {"held_out": "the half of D_val that no weights use", "shared": "D_val, which FedVG's weights also use"}
"""Value of `best_on` -> the rows on which the best round is chosen."""


def partition_label(config: Config) -> str:
    """Returns the partition, with its concentration where it has one.

    >>> partition_label(Config(alpha=0.1)), partition_label(Config(partition="iid"))
    ('dirichlet, alpha 0.1', 'iid')
    """
    has_alpha = not unused(config, ["alpha"])
    return f"{config.partition}, alpha {config.alpha:g}" if has_alpha else config.partition


def unit(arrays: Arrays) -> str:
    """Returns what labels are counted in: images, characters of sequences, or rows of a table.

    >>> from fedvg_jax import data
    >>> unit(data.load("digits")), unit(data.load("iris")), unit(data.load("literature"))
    ('images', 'rows', 'characters')
    """
    if user_data.is_images(arrays):
        return "images"
    return "characters" if user_data.is_sequences(arrays) else "rows"


def run_label(config: Config) -> str:
    """Returns method, data set, partition and seed.

    >>> run_label(Config())
    'FedVG; digits, dirichlet, alpha 0.05; seed 0'
    """
    method = method_of(config.algorithm, config.weighting, config.local)
    return f"{method_title(method)}; {config.dataset}, {partition_label(config)}; seed {config.seed}"
