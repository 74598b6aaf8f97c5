"""Reliability diagrams: accuracy against confidence, by method, in the final round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedvg_jax.study.cells import Cell, Study, scenario_text
from fedvg_jax.study.figures import base
from fedvg_jax.study.figures.base import Drawing, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = "test_calibration"
"""Key of a record: [labels, mean confidence, accuracy] of every bin of confidence, on the test set."""

ERROR = "test_calibration_error"
"""Key of a record: the expected calibration error, from 0 to 1."""

LARGEST_MARKER = 60.0
"""Area in square points of the marker of a bin that holds all labels; others are in proportion, at least `LEAST`."""
LEAST_MARKER = 4.0


def bins_of(cell: Cell) -> np.ndarray | None:
    """Returns labels, mean confidence and accuracy of every bin over all runs in the final round, [bins, 3].

    Labels of all runs count alike. None where no run records them.
    """
    recorded = [np.array(r[BINS], float) for run in cell.runs.values() for r in run.records[-1:] if r.get(BINS)]
    if not recorded:
        return None
    labels = np.sum([bins[:, 0] for bins in recorded], 0)
    sums = np.sum([np.where(bins[:, :1] > 0, bins[:, :1] * bins[:, 1:], 0) for bins in recorded], 0)
    with np.errstate(invalid="ignore"):
        means = sums / labels[:, None]
    return np.column_stack([labels, means])


def error_of(cell: Cell) -> float:
    """Returns the mean over runs of the expected calibration error in the final round; nan without any."""
    errors = [r[ERROR] for run in cell.runs.values() for r in run.records[-1:] if r.get(ERROR) is not None]
    return sum(errors) / len(errors) if errors else float("nan")


def reliability(study: Study, style: Style) -> list[Drawing] | str:
    """Returns a figure of accuracy against confidence, a panel per method and scenario."""
    panels = [
        (cell, bins)
        for scenario in study.scenarios
        for method in study.methods
        if (bins := bins_of(cell := study.cell(method, scenario))) is not None
    ]
    if not panels:
        return "no run records confidences; --record calibration does"
    per_row = 1 if style.panels_per_row == 1 else 3  # panels are square
    figure, axes = base.grid(style._replace(panels_per_row=per_row), len(panels), sharex=True, sharey=True)
    styles, rows = base.line_styles(study.methods), []
    for panel, (cell, bins) in zip(axes, panels, strict=True):
        _panel(panel, bins, styles[cell.method].colour, style)
        where = scenario_text(cell.scenario)
        title = ", ".join(filter(None, (cell.method, where)))
        panel.set_title(f"{base.plain(title, 30)}\ncalibration error {100 * error_of(cell):.1f} %")
        limits = np.linspace(0, 1, len(bins) + 1)
        rows += [
            (where, cell.method, low, high, int(count), confidence, accuracy)
            for low, high, (count, confidence, accuracy) in zip(limits[:-1], limits[1:], bins, strict=True)
        ]
    figure.supxlabel("confidence", fontsize=style.font)
    figure.supylabel("accuracy", fontsize=style.font)
    columns = ("setting", "method", "from", "to", "labels", "confidence", "accuracy")
    title = "Accuracy by confidence on the test set, with the expected calibration error; area: labels"
    return [Drawing("calibration", title, figure, columns, rows)]


def _panel(axes: Axes, bins: np.ndarray, colour: str, style: Style) -> None:
    """Draws the bins that hold labels, and the diagonal of perfect calibration."""
    labels, confidence, accuracy = bins[bins[:, 0] > 0].T
    axes.plot([0, 1], [0, 1], color=base.GREY, lw=0.9, ls="--")
    axes.plot(confidence, accuracy, color=colour, lw=style.line)
    areas = np.maximum(LEAST_MARKER, LARGEST_MARKER * labels / labels.sum())
    axes.scatter(confidence, accuracy, s=areas.tolist(), color=colour, zorder=3, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.annotate("overconfident", (0.97, 0.04), ha="right", color=base.GREY, fontsize=style.font - 2)
    axes.annotate("underconfident", (0.03, 0.92), color=base.GREY, fontsize=style.font - 2)
    base.clean(axes)
