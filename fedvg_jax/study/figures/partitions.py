"""Classes of the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedvg_jax.study.cells import Run, Scenario, Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.views import plots
from fedvg_jax.views.labels import partition_label


def partitions(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of training rows by client and class, a panel per partition."""
    runs = [(scenario, run) for scenario, run in _first_runs(study) if run.partition.get("counts")]
    if not runs:
        return "no run has a partition.json with the classes of its clients"
    different = [(setting, run, np.array(run.partition["counts"]))
                 for setting, run in _distinct_runs(runs, lambda run: run.partition["counts"])]  # fmt: skip
    figure, axes = base.grid(style, len(different), 1.05)
    largest = max(int(counts.max()) for *_, counts in different)
    rows = []
    for panel, (setting, run, counts) in zip(axes, different, strict=True):
        plots.classes_of_clients(panel, counts, largest)
        names = [str(name) for name in run.partition.get("class_names", range(counts.shape[1]))]
        if len(names) <= 12:
            panel.set_yticks(range(len(names)), [base.plain(name, 14) for name in names])
        panel.set(xlabel="client", ylabel="class", title=base.plain(setting or partition_label(run.config)))
        cells = np.ndindex(*counts.shape)
        rows += [(setting, k, names[c], int(counts[k, c])) for k, c in cells]
    shown = " or ".join(
        sorted({"area" if counts.size <= plots.MAX_BUBBLES else "darkness" for *_, counts in different})
    )
    title = f"Training rows by client and class; {shown} shows the number of rows, at most {largest:,}"
    return [Drawing("partitions", title, figure, ("setting", "client", "class", "rows"), rows)]


def _first_runs(study: Study) -> list[tuple[Scenario, Run]]:
    """Returns the run of the smallest seed in every scenario, of the first method that has one."""
    first = []
    for scenario in study.scenarios:
        cells = [study.cell(method, scenario) for method in study.methods]
        if runs := next((cell.runs for cell in cells if cell.runs), None):
            first.append((scenario, runs[min(runs)]))
    return first


def _distinct_runs(runs: Sequence[tuple[Scenario, Run]], key: Callable[[Run], Any]) -> list[tuple[str, Run]]:
    """Returns the runs that differ in a key, each with the settings that it stands for.

    These are the settings that all scenarios of one key share, if no scenario of another key has all of them, too.
    Otherwise they are those of the first scenario.
    """
    different: list[tuple[str, Run]] = []
    for scenario, run in runs:
        alike = [other for other, its_run in runs if key(its_run) == key(run)]
        if scenario != alike[0]:
            continue
        shared = tuple(pair for pair in scenario if all(pair in other for other in alike))
        is_unique = sum(set(shared) <= set(other) for other, _ in runs) == len(alike)
        different.append((scenario_text(shared if is_unique else scenario), run))
    return different
