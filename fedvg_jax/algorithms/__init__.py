"""Federated algorithms: a module for each, with a factory that returns an `Algorithm`; parts for your own."""

from fedvg_jax.algorithms.base import (
    features_of as features_of,
    forward as forward,
    mean_over_rows as mean_over_rows,
    no_correction as no_correction,
    no_probe as no_probe,
    no_report as no_report,
    no_residual as no_residual,
    no_state as no_state,
)
from fedvg_jax.algorithms.ditto import ENTRY as _ditto, ditto as ditto
from fedvg_jax.algorithms.elastic import ENTRY as _elastic, elastic as elastic
from fedvg_jax.algorithms.fedavg import ENTRY as _fedavg, fedavg as fedavg
from fedvg_jax.algorithms.feddecorr import ENTRY as _feddecorr, feddecorr as feddecorr
from fedvg_jax.algorithms.feddyn import ENTRY as _feddyn, feddyn as feddyn
from fedvg_jax.algorithms.fedlc import ENTRY as _fedlc, fedlc as fedlc
from fedvg_jax.algorithms.fednova import ENTRY as _fednova, fednova as fednova
from fedvg_jax.algorithms.fedntd import ENTRY as _fedntd, fedntd as fedntd
from fedvg_jax.algorithms.fedopt import (
    FEDADAGRAD as _fedadagrad,
    FEDADAM as _fedadam,
    FEDAVGM as _fedavgm,
    FEDYOGI as _fedyogi,
    fedadagrad as fedadagrad,
    fedadam as fedadam,
    fedavgm as fedavgm,
    fedyogi as fedyogi,
)
from fedvg_jax.algorithms.fedprox import ENTRY as _fedprox, fedprox as fedprox
from fedvg_jax.algorithms.moon import ENTRY as _moon, moon as moon
from fedvg_jax.algorithms.scaffold import ENTRY as _scaffold, scaffold as scaffold

BY_NAME = {
    "fedavg": _fedavg,
    "fedavgm": _fedavgm,
    "fedprox": _fedprox,
    "scaffold": _scaffold,
    "feddyn": _feddyn,
    "elastic": _elastic,
    "moon": _moon,
    "fedntd": _fedntd,
    "feddecorr": _feddecorr,
    "fedlc": _fedlc,
    "ditto": _ditto,
    "fedadam": _fedadam,
    "fedyogi": _fedyogi,
    "fedadagrad": _fedadagrad,
    "fednova": _fednova,
}
"""The algorithms that settings name."""
