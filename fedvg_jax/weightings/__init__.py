"""Weightings: factories, the signals they measure, and the functions that a user's own weighting is built from."""

from fedvg_jax.weightings import signals
from fedvg_jax.weightings.baselines import fitted, fltrust, inverse_samples, permuted, val_accuracy, val_loss
from fedvg_jax.weightings.family import generalised, generalised_weights
from fedvg_jax.weightings.fisher import fisher_trace, joint_fisher, sampled_joint_fisher
from fedvg_jax.weightings.rules import aggregate, fedvg, inverse_norm_weights, mix, samples, uniform
from fedvg_jax.weightings.signals import gradient_norms, validation_gradients

__all__ = [
    "aggregate",
    "fedvg",
    "fisher_trace",
    "fitted",
    "fltrust",
    "generalised",
    "generalised_weights",
    "gradient_norms",
    "inverse_norm_weights",
    "inverse_samples",
    "joint_fisher",
    "mix",
    "permuted",
    "sampled_joint_fisher",
    "samples",
    "signals",
    "uniform",
    "val_accuracy",
    "val_loss",
    "validation_gradients",
]
