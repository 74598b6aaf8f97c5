"""Weightings: factories, the signals they measure, and the functions that a user's own weighting is built from."""

from fedvg_jax.weightings import signals
from fedvg_jax.weightings.aggregation import aggregate
from fedvg_jax.weightings.baselines import fitted, fltrust, inverse_samples, permuted, val_accuracy, val_loss
from fedvg_jax.weightings.basic import broadcast_weights, by_scalar, given, mix, no_detail, samples, shares, uniform
from fedvg_jax.weightings.family import generalised, generalised_weights
from fedvg_jax.weightings.fedvg import fedvg, inverse_norm_weights
from fedvg_jax.weightings.fisher import fisher_trace, joint_fisher, sampled_joint_fisher
from fedvg_jax.weightings.signals import gradient_norms, validation_gradients
from fedvg_jax.weightings.streaming import mean_terms, select_terms, single_term

__all__ = [
    "aggregate",
    "broadcast_weights",
    "by_scalar",
    "fedvg",
    "fisher_trace",
    "fitted",
    "fltrust",
    "generalised",
    "generalised_weights",
    "given",
    "gradient_norms",
    "inverse_norm_weights",
    "inverse_samples",
    "joint_fisher",
    "mean_terms",
    "mix",
    "no_detail",
    "permuted",
    "sampled_joint_fisher",
    "samples",
    "select_terms",
    "shares",
    "signals",
    "single_term",
    "uniform",
    "val_accuracy",
    "val_loss",
    "validation_gradients",
]
