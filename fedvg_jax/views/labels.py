"""Short texts about a run, for the terminal and the titles of pictures."""

from __future__ import annotations

import re

from fedvg_jax.config import Config
from fedvg_jax.config.methods import label
from fedvg_jax.config.uses import unused
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays

SELECTED_ON = {"held_out": "the half of D_val that no weights use", "shared": "D_val, which FedVG's weights also use"}
"""Value of `best_on` -> the rows on which the best round is chosen."""


def method_label(name: str) -> str:
    """Returns the name of a method as a paper prints it; settings behind the first comma stay.

    >>> method_label("fedrep+fedvg"), method_label("permuted(fedvg)"), method_label("fedvg, norm l2")
    ('FedRep + FedVG', 'permuted(FedVG)', 'FedVG, norm l2')
    """
    method, comma, details = name.partition(", ")
    spelt = re.sub(r"\w+", lambda word: label(word[0]), method)
    return f"{spelt.replace('+', ' + ')}{comma}{details}"


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
    """Returns algorithm, weighting, data set, partition and seed.

    >>> run_label(Config())
    'fedavg, fedvg weights; digits, dirichlet, alpha 0.05; seed 0'
    """
    return (
        f"{config.algorithm}, {config.weighting} weights; {config.dataset}, {partition_label(config)};"
        f" seed {config.seed}"
    )
