"""The text of every generated part of the pages, by the name of its markers."""

from __future__ import annotations

from benchmarks.machine import RESULTS
from benchmarks.pages import (
    api,
    claims,
    cpu,
    gpu,
    measurements,
    options,
    slow_clients,
    studies,
    validation,
)
from benchmarks.studies import uses

CONTROLS = [folder.name for folder in sorted(RESULTS.glob("controls_*"))]
"""Comparisons of FedVG with its controls."""
USES = (*uses.SETS, *uses.WHOLE, *uses.ADAPTERS, *uses.HIDDEN, *uses.RANDOM)
"""Folders of results with the uses of a validation set."""


def pieces() -> dict[str, str]:
    """Returns the text of every piece, by the name of its markers."""
    return {
        "speed": cpu.render(),
        "gpu": gpu.render(),
        "limits": cpu.render_limits(),
        "options": options.options(),
        "methods": options.methods(),
        "presets": options.presets_of_data_sets(),
        "fidelity": options.fidelity(),
        "demo": studies.controls("controls_digits", setting="alpha 0.05"),
        "overview": studies.overview(),
        "outcomes": validation.outcomes(uses.SETS),
        "contrasts": validation.contrasts(uses.SETS),
        "contrasts_at_best_val": validation.contrasts(uses.SETS, "at_best_val", decides=False),
        "contrasts_whole_network": validation.contrasts(uses.WHOLE),
        "contrasts_whole_network_at_best_val": validation.contrasts(
            uses.WHOLE, "at_best_val", decides=False
        ),
        "contrasts_adapters": validation.contrasts(uses.ADAPTERS),
        **{name: validation.uses_of_validation(name) for name in USES},
        "contrasts_hidden": validation.contrasts(uses.HIDDEN, decides=False),
        "contrasts_random": validation.contrasts(uses.RANDOM, decides=False),
        "pretraining": validation.pretraining(),
        **{folder: validation.methods_on_features(folder) for folder in uses.METHODS},
        **{name: studies.controls(name) for name in CONTROLS},
        **{
            f"{name}_at_best_val": studies.controls(name, choice="at_best_val")
            for name in CONTROLS
            if name.endswith(("_alpha_0.1", "_alpha_0.5", "_full"))
        },
        "controls_cifar10_lenet5_full_against_fedavg": studies.controls(
            "controls_cifar10_lenet5_full", "fedavg"
        ),
        **{
            name: studies.controls(name, "uniform")
            for name in ("family_digits", "family_breast_cancer")
        },
        **{
            name: studies.controls(name)
            for name in ("learning_rates_digits", "learning_rates_features")
        },
        "claims": claims.claims(),
        "claims_by_data_set": claims.claims_by_data_set(),
        "claims_in_detail": claims.claims_in_detail(),
        "slow_clients_outcomes": slow_clients.outcomes(),
        "slow_clients_contrasts": slow_clients.contrasts(),
        "slow_clients_servers": slow_clients.servers(),
        "studies": studies.index_of_studies(),
        "measurements": measurements.index_of_measurements(),
        **{make.__name__: make() for make in measurements.TABLES},
        "api_index": api.index(),
    }
