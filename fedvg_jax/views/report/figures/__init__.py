"""The figures of a report by name; each returns its drawings, or one line that says what the runs lack."""

from __future__ import annotations

from collections.abc import Callable

from fedvg_jax.views.report.figures import (
    against,
    bars,
    calibration,
    classes,
    curves,
    fisher,
    head,
    layers,
    pairs,
    partitions,
    validity,
    weights,
)
from fedvg_jax.views.report.figures.base import Drawing, Style
from fedvg_jax.views.report.study import Study

FIGURES: dict[str, Callable[[Study, Style], list[Drawing] | str]] = {
    "curves": curves.learning_curves,
    "alphas": against.accuracy_against_alpha,
    "bars": bars.methods_at_smallest_alpha,
    "pairs": pairs.integrations,
    "weights": weights.client_weights,
    "effective_clients": weights.effective_number,
    "partitions": partitions.partitions,
    "validation_classes": partitions.validation_classes,
    "rho": against.accuracy_against_rho,
    "granularity": bars.granularities,
    "external": bars.validation_sources,
    "layers": layers.norms_by_layer,
    "classes": classes.recalls,
    "calibration": calibration.reliability,
    "head": head.head_against_body,
    "fisher": fisher.score_against_fisher,
    "validity": validity.score_validity,
}
"""Value of --figures -> the function that draws them."""

STEMS = (*FIGURES, "fisher_tensors", "validity_weights")
"""Names of all drawings; the second one of a group of settings has "-2" behind it, and so on."""
