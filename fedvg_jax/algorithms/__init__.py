"""Federated algorithms: a module for each, with a factory that returns an `Algorithm`; parts for one's own."""

from fedvg_jax.algorithms.base import (
    features_of as features_of,
    forward as forward,
    mean_over_rows as mean_over_rows,
    no_correction as no_correction,
    no_memory as no_memory,
    no_probe as no_probe,
    no_report as no_report,
    no_residual as no_residual,
)
from fedvg_jax.algorithms.ditto import ditto as ditto
from fedvg_jax.algorithms.elastic import elastic as elastic
from fedvg_jax.algorithms.fedavg import fedavg as fedavg
from fedvg_jax.algorithms.feddecorr import feddecorr as feddecorr
from fedvg_jax.algorithms.feddyn import feddyn as feddyn
from fedvg_jax.algorithms.fednova import fednova as fednova
from fedvg_jax.algorithms.fedntd import fedntd as fedntd
from fedvg_jax.algorithms.fedopt import (
    fedadagrad as fedadagrad,
    fedadam as fedadam,
    fedavgm as fedavgm,
    fedyogi as fedyogi,
)
from fedvg_jax.algorithms.fedprox import fedprox as fedprox
from fedvg_jax.algorithms.moon import moon as moon
from fedvg_jax.algorithms.scaffold import scaffold as scaffold
