"""The parts of the pages that come from the code and from results files, the pages of the API reference and of studies.

`python -m benchmarks.table` writes the pieces between their markers in the pages. Sphinx writes the pages
docs/reference/api/NAME.md and docs/studies/NAME.md before it reads the others.
"""

from __future__ import annotations

import os
import re
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
USES = (*uses.SETS, *uses.WHOLE, *uses.HIDDEN, *uses.RANDOM)
"""Folders of results with the uses of a validation set."""


def pieces() -> dict[str, str]:
    """Text of every piece, by the name of its markers."""
    return {
        "options": option_lists.options(),
        "methods": option_lists.methods(),
        "presets": option_lists.presets_of_data_sets(),
        "fidelity": result_tables.fidelity(),
        "parity": result_tables.parity(),
        "demo": result_tables.demo(),
        "overview": result_tables.overview(),
        "outcomes": result_tables.outcomes(uses.SETS),
        "contrasts": result_tables.contrasts(uses.SETS),
        "contrasts_at_best_val": result_tables.contrasts(uses.SETS, "at_best_val", decides=False),
        "contrasts_whole_network": result_tables.contrasts(uses.WHOLE),
        "contrasts_whole_network_at_best_val": result_tables.contrasts(uses.WHOLE, "at_best_val", decides=False),
        **{
            name: result_tables.uses_of_validation(name)
            for name in (*uses.SETS, *uses.WHOLE, *uses.HIDDEN, *uses.RANDOM)
        },
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
        "claims_by_data_set": result_tables.claims_by_data_set(),
        "claims_in_detail": result_tables.claims_in_detail(),
        "studies": result_tables.index_of_studies(),
        "measurements": result_tables.index_of_measurements(),
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
    """Writes what has changed, and removes pages that are no more."""
    wanted = {DOCS / "reference" / "api" / f"{name}.md": text for name, text in api_pages.pages().items()}
    studies = sorted(result_tables.RESULTS.rglob("README.md"))
    wanted |= {on_site(page): with_links_of_site(page.read_text(encoding="utf-8"), page) for page in studies}
    for folder in {path.parent for path in wanted}:
        if set(folder.glob("*.md")) - wanted.keys():
            shutil.rmtree(folder)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def on_site(page: Path) -> Path:
    """Returns where the site has a file: the pages of studies are in docs/studies."""
    is_study = page.name == "README.md" and page.is_relative_to(result_tables.RESULTS)
    return DOCS / "studies" / f"{page.parent.name}.md" if is_study else page


def with_links_of_site(text: str, page: Path) -> str:
    """Returns the text of a page with links that lead to the same files on the site."""

    def link(match: re.Match) -> str:
        return "](" + os.path.relpath(on_site((page.parent / match[1]).resolve()), on_site(page).parent)

    return re.sub(r"\]\(([^)#:\s]+)", link, text)


LISTS = {"reference/api": "api/*", "studies/results": "*"}
"""Page -> pages that follow it in the site's list, which the page in the repository has no use for."""


def adapt(app, name: str, source: list[str]) -> None:
    """Adapts a page to the site: links to studies, and lists of pages."""
    if not name.startswith("studies/"):
        source[0] = with_links_of_site(source[0], DOCS / f"{name}.md")
    if name in LISTS:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{LISTS[name]}\n```\n"


def setup(app) -> dict[str, bool]:
    """Registers the step."""
    app.connect("builder-inited", write)
    app.connect("source-read", adapt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
