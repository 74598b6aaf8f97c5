"""The figures that only the paper's study needs, by name."""

from __future__ import annotations

from benchmarks.studies.paper import bars, fisher, head, layers, pairs, rho, validity
from fedvg_jax.study.figures import Figure

FIGURES: dict[str, Figure] = {
    "bars": bars.methods_at_smallest_alpha,
    "pairs": pairs.integrations,
    "rho": rho.accuracy_against_rho,
    "granularity": bars.granularities,
    "external": bars.validation_sources,
    "layers": layers.norms_by_layer,
    "head": head.head_against_body,
    "fisher": fisher.score_against_fisher,
    "validity": validity.score_validity,
}
