"""Weightings: factories, the signals they measure, and the functions that a custom weighting is built from."""

from fedvg_jax.weightings import signals as signals
from fedvg_jax.weightings.aggregation import (
    aggregate as aggregate,
    mean_terms as mean_terms,
    select_terms as select_terms,
    single_term as single_term,
)
from fedvg_jax.weightings.baselines import (
    BY_NAME as _baselines,
    fitted as fitted,
    fltrust as fltrust,
    inverse_samples as inverse_samples,
    permuted as permuted,
    val_accuracy as val_accuracy,
    val_loss as val_loss,
)
from fedvg_jax.weightings.basic import (
    BY_NAME as _basic,
    broadcast_weights as broadcast_weights,
    by_scalar as by_scalar,
    fixed as fixed,
    mix as mix,
    samples as samples,
    shares as shares,
    uniform as uniform,
)
from fedvg_jax.weightings.family import (
    ENTRY as _generalised,
    generalised as generalised,
    generalised_weights as generalised_weights,
)
from fedvg_jax.weightings.feddisco import ENTRY as _feddisco, feddisco as feddisco
from fedvg_jax.weightings.fedvg import (
    ENTRY as _fedvg,
    fedvg as fedvg,
    inverse_norm_weights as inverse_norm_weights,
)
from fedvg_jax.weightings.signals import (
    gradient_norms as gradient_norms,
    validation_gradients as validation_gradients,
)

BY_NAME = {
    **_basic,
    "fedvg": _fedvg,
    "generalised": _generalised,
    **_baselines,
    "feddisco": _feddisco,
}
"""The weightings that settings name."""
