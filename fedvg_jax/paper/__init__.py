"""The numbers of the paper's result tables and of its text, to hold others against."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple

from fedvg_jax.core.types import UsageError


class Cell(NamedTuple):
    """One number of a table."""

    table: str
    """results_resnet, results_vit, integration (X + FedVG), granularity, external_text or norm_text"""
    dataset: str
    model: str
    method: str
    """as printed, e.g. "FedAvgM + FedVG" """
    alpha: float
    mean: float
    """test accuracy, percent, of five seeds"""
    std: float | None
    """None where none is given"""
    mark: str
    """bold, second (underlined) or nothing"""


def cells() -> list[Cell]:
    """All of them, in the order of the paper."""
    text = resources.files("fedvg_jax.paper").joinpath("tables.csv").read_text(encoding="utf-8")
    return [
        Cell(**row | {name: float(row[name]) if row[name] else None for name in ("alpha", "mean", "std")})
        for row in csv.DictReader(text.splitlines())
    ]


def accuracy(dataset: str, model: str, method: str, alpha: float) -> tuple[float, float | None]:
    """(mean, standard deviation) in percent of one of the paper's runs.

    Raises:
        UsageError: the paper has no such run.

    >>> accuracy("cifar10", "resnet18", "FedVG", 0.05)
    (53.58, 2.78)
    """
    for cell in cells():
        if (cell.dataset, cell.model, cell.method, cell.alpha) == (dataset, model, method, alpha):
            return cell.mean, cell.std
    raise UsageError(f"the paper has no {method} with {model} on {dataset} at alpha {alpha:g}")
