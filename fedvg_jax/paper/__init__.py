"""The numbers of the paper's result tables and text, for comparison."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from fedvg_jax.core.types import UsageError


class Cell(NamedTuple):
    """One number of a table."""

    table: str
    """One of results_resnet, results_vit, integration (X + FedVG), granularity, external_text and norm_text."""
    dataset: str
    model: str
    method: str
    """As printed, e.g. "FedAvgM + FedVG"."""
    alpha: float
    mean: float
    """Mean test accuracy over five seeds, percent."""
    std: float | None
    """Standard deviation over the seeds, percent; None if the paper gives none."""
    mark: str
    """"bold", "second" (underlined) or empty."""


def cells() -> list[Cell]:
    """Returns all numbers in the order of the paper."""
    text = Path(__file__).with_name("tables.csv").read_text(encoding="utf-8")
    return [_cell(**row) for row in csv.DictReader(text.splitlines())]


def _cell(*, alpha: str, mean: str, std: str, **names: str) -> Cell:
    return Cell(**names, alpha=float(alpha), mean=float(mean), std=float(std) if std else None)


def accuracy(dataset: str, model: str, method: str, alpha: float) -> tuple[float, float | None]:
    """Returns (mean, standard deviation) of the test accuracy of one of the paper's runs, percent.

    Raises:
        UsageError: the paper has no such run.

    >>> accuracy("cifar10", "resnet18", "FedVG", 0.05)
    (53.58, 2.78)
    """
    for cell in cells():
        if (cell.dataset, cell.model, cell.method, cell.alpha) == (dataset, model, method, alpha):
            return cell.mean, cell.std
    raise UsageError(f"the paper has no {method} with {model} on {dataset} at alpha {alpha:g}; see paper.cells()")
