"""Federated algorithms: a module for each, with a factory that returns an `Algorithm`."""

from fedvg_jax.algorithms.elastic import elastic
from fedvg_jax.algorithms.fedavg import fedavg
from fedvg_jax.algorithms.feddyn import feddyn
from fedvg_jax.algorithms.fednova import fednova
from fedvg_jax.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedvg_jax.algorithms.fedprox import fedprox
from fedvg_jax.algorithms.scaffold import scaffold

__all__ = [
    "elastic",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fednova",
    "fedprox",
    "fedyogi",
    "scaffold",
]
