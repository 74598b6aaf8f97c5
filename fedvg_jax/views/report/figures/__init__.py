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

CAPTIONS: dict[str, str] = {
    "curves": "Means over runs, with bands of one standard deviation.",
    "alphas": "Means over runs, with one standard deviation.",
    "bars": "Means over runs at the smallest alpha, with one standard deviation.",
    "pairs": "A method under its own weights and under FedVG's: means over runs, with bands of one standard deviation.",
    "weights": "Weight times cohort size of every client in its rounds; above 1 it counts for more than others.",
    "effective_clients": "K where all clients of a cohort weigh the same, 1 where one client has all weight.",
    "partitions": "The area of a point is the number of training rows of a client and a class.",
    "validation_classes": "Rows of each class in the validation set.",
    "rho": "Means over runs by the imbalance of the validation set, with one standard deviation.",
    "granularity": "Means over runs by the part of the model with its own weight, with one standard deviation.",
    "external": "Means over runs by the source of the validation set, with one standard deviation.",
    "layers": "Norm of the validation gradient of each layer, input to output, for each client of a round.",
    "classes": "Part of the test rows of a class that are given that class; mean over runs with rows of it.",
    "calibration": "Accuracy of answers against the model's confidence; on the diagonal it is calibrated.",
    "head": "Norms of the classifier against those of all other layers.",
    "fisher": "FedVG's score of a client against the root of the trace of its Fisher information.",
    "validity": "Rank correlation of each measurement with the accuracy of the client's model, by round.",
    "fisher_tensors": "Norm of a tensor's gradient against the root of its joint Fisher information.",
    "validity_weights": "Weight of a client against the accuracy of its model, for every client and round.",
}
"""Name of a drawing -> what it shows."""

STEMS = tuple(CAPTIONS)
"""Names of all drawings; the second one of a group of settings has "-2" behind it, and so on."""
