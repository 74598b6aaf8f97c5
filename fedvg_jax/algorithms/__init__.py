"""Federated algorithms: a module for each, with a factory that returns an `Algorithm`; parts for one's own."""

from fedvg_jax.algorithms.base import no_correction, no_memory, no_probe, no_report, no_residual
from fedvg_jax.algorithms.ditto import ditto
from fedvg_jax.algorithms.elastic import elastic
from fedvg_jax.algorithms.fedavg import fedavg
from fedvg_jax.algorithms.feddecorr import feddecorr
from fedvg_jax.algorithms.feddyn import feddyn
from fedvg_jax.algorithms.fednova import fednova
from fedvg_jax.algorithms.fedntd import fedntd
from fedvg_jax.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedvg_jax.algorithms.fedprox import fedprox
from fedvg_jax.algorithms.losses import features_of, forward, mean_over_rows
from fedvg_jax.algorithms.moon import moon
from fedvg_jax.algorithms.scaffold import scaffold

__all__ = [
    "ditto",
    "elastic",
    "features_of",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "feddecorr",
    "feddyn",
    "fednova",
    "fedntd",
    "fedprox",
    "fedyogi",
    "forward",
    "mean_over_rows",
    "moon",
    "no_correction",
    "no_memory",
    "no_probe",
    "no_report",
    "no_residual",
    "scaffold",
]
