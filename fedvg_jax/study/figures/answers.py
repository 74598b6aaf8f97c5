"""Answers in the final round by class, by confidence and by client, under every method."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedvg_jax.runs.record.history import CLIENT_ACCURACIES
from fedvg_jax.study.cells import Cell, Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style
from fedvg_jax.study.tables import MODELS
from fedvg_jax.views.labels import method_label

MATRIX = "test_confusion"
"""Key of a record: the confusion matrix of the test set, [true, predicted]."""

MAX_NUMBERS = 16
"""Most classes of which the cells show their number."""


def _recorded(cell: Cell, key: str) -> list[Any]:
    """Returns an entry of the final records of a cell's runs, of those that have it."""
    return [r[key] for run in cell.runs.values() for r in run.records[-1:] if r.get(key) is not None]


def class_recalls(cell: Cell) -> np.ndarray | None:
    """Returns the mean over runs of each class's recall in percent, [C]; None where no run records it.

    A run has no part in the mean of a class of which it has no test row; a class without any is nan.
    """
    matrices = [np.array(matrix, float) for matrix in _recorded(cell, MATRIX)]
    if not matrices:
        return None
    with np.errstate(invalid="ignore"):
        shares = [100 * np.diag(matrix) / matrix.sum(1) for matrix in matrices]
    return np.ma.masked_invalid(shares).mean(0).filled(np.nan)


def recalls(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of recall by method and class, a panel per scenario."""
    by_cell = {key: values for key, cell in study.cells.items() if (values := class_recalls(cell)) is not None}
    scenarios = [s for s in study.scenarios if any((method, s) in by_cell for method in study.methods)]
    if not scenarios:
        return "no run records the confusion matrix; --record confusion does"
    height = (0.24 * len(study.methods) + 1.0) / style.panel_height
    figure, axes = base.grid(style._replace(panels_per_row=1), len(scenarios), height)
    rows = []
    for panel, scenario in zip(axes, scenarios, strict=True):
        methods = [method for method in study.methods if (method, scenario) in by_cell]
        values = np.array([by_cell[method, scenario] for method in methods])
        panel.imshow(values, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest")
        run = next(iter(study.cell(methods[0], scenario).runs.values()))
        names = [str(name) for name in run.partition.get("class_names", range(values.shape[1]))]
        panel.set_yticks(range(len(methods)), [base.plain(method_label(method), 34) for method in methods])
        if len(names) <= MAX_NUMBERS:
            short = [base.plain(name, 10) for name in names]
            panel.set_xticks(range(len(names)), short, rotation=0 if max(map(len, short)) <= 3 else 60)
            for (i, j), value in np.ndenumerate(values):
                if np.isfinite(value):
                    ink = "black" if value > 55 else "white"
                    panel.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=style.font - 2, color=ink)
        panel.set(xlabel="class", title=base.plain(scenario_text(scenario)))
        panel.tick_params(length=0)
        cells = zip(methods, values, strict=True)
        rows += [(scenario_text(scenario), m, n, v) for m, row in cells for n, v in zip(names, row, strict=True)]
    figure.colorbar(axes[0].images[0], ax=axes, label="recall (%)", shrink=0.9, aspect=25)
    title = "Recall of every class in the final round"
    return [Drawing("classes", title, figure, ("setting", "method", "class", "recall"), rows)]


def client_accuracies(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of the clients in the order of their accuracies, a panel per scenario and model."""
    pooled = {
        (scenario, name, method): sorted(v for values in recorded for v in values if v is not None)
        for scenario in study.scenarios
        for name in CLIENT_ACCURACIES
        for method in study.methods
        if (recorded := _recorded(study.cell(method, scenario), name))
    }
    panels = list(dict.fromkeys(key[:2] for key in pooled))
    if not panels:
        return "no run records the accuracies of clients; --record accuracy_by_client does"
    figure, axes = base.grid(style, len(panels), sharey=True)
    styles, rows = base.line_styles(study.methods), []
    for panel, (scenario, name) in zip(axes, panels, strict=True):
        where = scenario_text(scenario)
        for method in study.methods:
            if accuracies := pooled.get((scenario, name, method)):
                shares = (np.arange(len(accuracies)) + 0.5) / len(accuracies)
                line = styles[method] | {"marker": None, "lw": style.line}
                panel.plot(100 * shares, 100 * np.array(accuracies), **line)
                pairs = zip(shares, accuracies, strict=True)
                rows += [(where, MODELS[name], method, float(share), value) for share, value in pairs]
        title = ", ".join(filter(None, (f"{MODELS[name]} model", where)))
        panel.set(xlabel="clients (%)", xlim=(0, 100), ylim=(0, 102), title=base.plain(title, 34))
        base.clean(panel)
    figure.supylabel("accuracy (%)", fontsize=style.font)
    columns = ("setting", "model", "method", "share", "accuracy")
    return [Drawing("clients", "Accuracy of every client on its own test rows", figure, columns, rows)]
