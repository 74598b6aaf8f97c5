"""The final result against the imbalance rho of the validation set."""

from __future__ import annotations

from fedvg_jax.study.cells import Study
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.figures.curves import against

RHO = "validation.rho"


def accuracy_against_rho(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure with the final result of every method against the imbalance of D_val.

    FedAvg, which uses no D_val, has runs at one rho only, and is a point.
    """
    return against(study, style, RHO, "rho", r"imbalance $\rho$ of $D_{val}$", "linear")
