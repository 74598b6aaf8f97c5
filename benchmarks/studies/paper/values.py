"""The paper's values beside ours, from runs with its data set, model, method and alpha."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedvg_jax.config import Config, flatten, method_title, presets
from fedvg_jax.config.checks import unused
from fedvg_jax.config.methods import method_of
from fedvg_jax.study.groups import Study
from fedvg_jax.study.markup import number, spread
from fedvg_jax.study.places import METHOD_GROUPS, condition_text

DIRICHLET = ("dirichlet", "official")
"""Partitions that the paper's alpha stands for."""

OF_PAPERS_METHOD = (*METHOD_GROUPS, "attack", "corrupt", "validation")
"""Groups of settings in which a run with a value of the paper has the paper's, see `paper_name`."""

PAPER_NAMES = {name: method_title(name) for name in presets.METHODS if "+" not in name}
"""Part of a method's name -> the paper's spelling."""

EXTERNAL = {"stl10": "FedVG val=STL-10", "cifar100": "FedVG val=CIFAR-100"}
"""Source of the validation set -> the paper's name of FedVG with it."""


class Value(NamedTuple):
    """Mean accuracy of a method, in percent."""

    dataset: str
    model: str
    method: str
    """The paper's name."""
    alpha: float
    mean: float
    std: float
    """nan where there is none."""


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the sample standard deviation; nan for the deviation of one value."""
    if not values:
        return math.nan, math.nan
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return float(np.mean(values)), std


@functools.cache
def paper_values() -> tuple[Value, ...]:
    """Returns the numbers of the paper's tables."""
    table = pd.read_csv(Path(__file__).with_name("tables.csv"))
    return tuple(map(Value._make, table[[*Value._fields]].itertuples(index=False)))


def paper_name(config: Config, given: Collection[str] = ()) -> str | None:
    """Returns the paper's name of a method; None where its tables have none.

    Its tables have neither other hyperparameters of a method, nor objects from Python, attacks and corrupt clients.

    Args:
        config: of a run.
        given: objects from Python that replace settings.

    >>> paper_name(Config(method="fedprox+fedvg")), paper_name(Config(weighting="uniform"))
    ('FedProx + FedVG', None)
    >>> paper_name(Config(method="fedvg", fedvg={"norm": "l2"})), paper_name(Config(method="fedvg"), {"weighting"})
    (None, None)
    """
    method = method_of(config.algorithm, config.weighting)
    parts = method.split("+")
    if (
        given
        or not all(part in PAPER_NAMES for part in parts)
        or not _has_papers_method(config, method)
    ):
        return None
    name = " + ".join(PAPER_NAMES[part] for part in parts)
    is_external = not config.validation.source.startswith("clients")
    if config.fedvg.granularity != "modelwise" and "fedvg" in config.weighting:
        return (
            f"FedVG ({config.fedvg.granularity.capitalize()})"
            if name == "FedVG" and not is_external
            else None
        )
    if is_external:
        return EXTERNAL.get(config.validation.source) if name == "FedVG" else None
    return name


def _has_papers_method(config: Config, method: str) -> bool:
    """Returns whether the settings of method, data and clients that no preset names are the paper's.

    A setting that the run does not use is of no account.
    """
    official = presets.FIDELITY["official"]
    named = presets.of_method(method) if method in presets.METHODS else {}
    expected = flatten(Config()) | named
    ignored = {
        "fedvg.granularity",
        "reference",
        "validation.source",
        "validation.data_dir",
        *unused(config),
    }
    for name, value in flatten(config).items():
        is_papers = value in (expected[name], official.get(name, expected[name]))
        if name.split(".")[0] in OF_PAPERS_METHOD and name not in ignored and not is_papers:
            return False
    return True


def published(config: Config, given: Collection[str] = ()) -> tuple[float, float] | None:
    """Returns the paper's mean and deviation for the data set, model, method and alpha of a run; None if it has none.

    Args:
        config: of a run.
        given: objects from Python that replace settings.

    >>> published(Config(dataset="cifar10", model="resnet18", method="fedvg", alpha=0.05))
    (53.58, 2.78)
    """
    name = paper_name(config, given)
    if name is None or config.partition not in DIRICHLET:
        return None
    run = config.dataset, config.model, name, config.alpha
    return next(((value.mean, value.std) for value in paper_values() if value[:4] == run), None)


def against_paper(study: Study) -> pd.DataFrame:
    """Returns our values in percent beside the paper's, in words; no row where the paper has none of these runs."""
    rows = []
    for group in study.groups.values() if study.outcome.metric == "accuracy" else ():
        run, maxima = next(iter(group.runs.values()), None), group.results("max")
        if run and maxima and (theirs := published(run.config, run.custom)):
            finals, maxima = (
                mean_and_std(list(values.values())) for values in (group.results(), maxima)
            )
            row = {"setting": condition_text(group.condition), "method": group.method}
            row |= {"final round": spread(*finals), "maximum": spread(*maxima)}
            gap = number(maxima[0] - theirs[0], sign="+")
            rows.append(row | {"paper": spread(*theirs), "maximum minus paper": gap})
    return pd.DataFrame(rows)
