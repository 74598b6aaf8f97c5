"""The parts of the pages that come from the code and from results files, and the pages of the API reference.

`python -m benchmarks.table` writes the pieces between their markers in the pages. Sphinx writes the pages
docs/reference/api/NAME.md before it reads the others.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import api_pages
import option_lists
import result_tables

from benchmarks import uses

DOCS = Path(__file__).parent.parent
CONTROLS = (
    *("digits", "digits_equal", "digits_tinycnn", "digits_tinycnn_milder", "digits_tinycnn_equal"),
    *("cifar10_lenet5", "cifar10_lenet5_at_best_val"),
    *("cifar10_lenet5_alpha_0.1", "cifar10_lenet5_alpha_0.5", "cifar10_lenet5_full"),
    *("cifar10_resnet18_batch", "cifar10_resnet18_group", "breast_cancer", "literature"),
)
"""Comparisons of FedVG with its controls."""


def pieces() -> dict[str, str]:
    """Text of every piece, by the name of its markers."""
    return {
        "options": option_lists.options(),
        "methods": option_lists.methods(),
        "presets": option_lists.presets_of_data_sets(),
        "official": option_lists.official(),
        "fidelity": result_tables.fidelity(),
        "parity": result_tables.parity(),
        "demo": result_tables.demo(),
        "overview": result_tables.overview(),
        "contrasts": result_tables.contrasts(uses.SETS),
        "contrasts_at_best_val": result_tables.contrasts(uses.SETS, "at_best_val", decides=False),
        "contrasts_whole_network": result_tables.contrasts(uses.WHOLE),
        "contrasts_whole_network_at_best_val": result_tables.contrasts(uses.WHOLE, "at_best_val", decides=False),
        **{folder.replace("features", "uses"): result_tables.uses_of_validation(folder) for folder in uses.SETS},
        **{name: result_tables.uses_of_validation(name) for name in (*uses.WHOLE, *uses.HIDDEN, *uses.RANDOM)},
        "contrasts_hidden": result_tables.contrasts(uses.HIDDEN, decides=False),
        "contrasts_random": result_tables.contrasts(uses.RANDOM, decides=False),
        "pretraining": result_tables.pretraining(),
        **{folder: result_tables.methods_on_features(folder) for folder in uses.METHODS},
        **{f"controls_{name}": result_tables.controls(f"controls_{name}") for name in CONTROLS},
        **{
            f"controls_{name}_at_best_val": result_tables.controls(f"controls_{name}", choice="at_best_val")
            for name in ("cifar10_lenet5_alpha_0.1", "cifar10_lenet5_alpha_0.5", "cifar10_lenet5_full")
        },
        "controls_cifar10_lenet5_full_against_fedavg": result_tables.controls("controls_cifar10_lenet5_full", "fedavg"),
        **{name: result_tables.controls(name, "uniform") for name in ("family_digits", "family_breast_cancer")},
        **{name: result_tables.controls(name) for name in ("learning_rates_digits", "learning_rates_features")},
        **{
            name: result_tables.client_values(name)
            for name in ("client_values", "client_values_cifar10", "client_values_covid")
        },
        "lasting_weights": result_tables.lasting_weights(),
        "costs": result_tables.costs(),
        "experiments": result_tables.experiments(),
        "planning": result_tables.planning(),
        "claims": result_tables.claims(),
        "cohort_memory": result_tables.cohort_memory(),
        "convolutions": result_tables.convolutions(),
        "own_networks": result_tables.own_networks(),
        "host_pool": result_tables.host_pool(),
        "faults": result_tables.faults(),
        "targets": result_tables.targets(),
        "hypergradient_memory": result_tables.hypergradient_memory(),
        "api_index": api_pages.index(),
    }


def write(app=None) -> None:
    """Writes what has changed, and removes API pages that are no more."""
    api = DOCS / "reference" / "api"
    wanted = {api / f"{name}.md": text for name, text in api_pages.pages().items()}
    if api.exists() and set(api.glob("*.md")) - wanted.keys():
        shutil.rmtree(api)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def list_api_pages(app, name: str, source: list[str]) -> None:
    """Appends the list of API pages, which the page in the repository has no use for."""
    if name == "reference/api":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\napi/*\n```\n"


def setup(app) -> dict[str, bool]:
    """Registers the step."""
    app.connect("builder-inited", write)
    app.connect("source-read", list_api_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
