"""The paper's values beside those of runs with its data set, model, method and alpha."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from fedvg_jax import paper
from fedvg_jax.config import Config, flatten, presets
from fedvg_jax.config.uses import unused
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import statistics, tables
from fedvg_jax.study.cells import Cell, Run, Study, results, value_text
from fedvg_jax.study.markup import Column, Entry, Table, number
from fedvg_jax.study.scenarios import METHOD_GROUPS, REPLICATE, Point, base_name, used_settings
from fedvg_jax.views import labels

PAPER_SEEDS = 5

DIRICHLET = ("dirichlet", "official")
"""Partitions that the paper's alpha stands for."""

OF_PAPERS_METHOD = (*METHOD_GROUPS, "attack", "corrupt", "validation")
"""Groups of settings in which a run with a value of the paper has the paper's, see `paper_name`."""

NO_SCALE = ("dataset", "model", "algorithm", "weighting", "alpha", *REPLICATE)
"""Settings that identify a value of the paper, and seeds."""

PAPER_NAMES = {name: labels.method_label(name) for name in presets.METHODS if "+" not in name}
"""Part of a method's name -> the paper's spelling."""

EXTERNAL = {"stl10": "FedVG val=STL-10", "cifar100": "FedVG val=CIFAR-100"}
"""Source of the validation set -> the paper's name of FedVG with it."""


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
    method = base_name(config.algorithm, config.weighting)
    parts = method.split("+")
    if given or not all(part in PAPER_NAMES for part in parts) or not _has_papers_method(config, method):
        return None
    name = " + ".join(PAPER_NAMES[part] for part in parts)
    is_external = config.validation.source != "clients"
    if config.fedvg.granularity != "modelwise" and "fedvg" in config.weighting:
        return f"FedVG ({config.fedvg.granularity.capitalize()})" if name == "FedVG" and not is_external else None
    if is_external:
        return EXTERNAL.get(config.validation.source) if name == "FedVG" else None
    return name


def _has_papers_method(config: Config, method: str) -> bool:
    """Returns whether the settings of method, data and clients besides those of the preset are the paper's.

    A setting that the run does not use is of no account.
    """
    official, expected = presets.FIDELITY["official"], flatten(Config()) | presets.METHODS.get(method, {})
    ignored = {"fedvg.granularity", "departures", "validation.source", "validation.data_dir", *unused(config)}
    for name, value in flatten(config).items():
        is_papers = value in (expected[name], official.get(name, expected[name]))
        if name.split(".")[0] in OF_PAPERS_METHOD and name not in ignored and not is_papers:
            return False
    return True


def published(config: Config, given: Collection[str] = ()) -> tuple[float, float | None] | None:
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
    try:
        return paper.accuracy(config.dataset, config.model, name, config.alpha)
    except UsageError:
        return None


def against_paper(study: Study) -> Table | None:
    """Returns our values beside the paper's; None where the paper has none of these runs."""
    if study.metric != "accuracy":
        return None
    values = {
        key: published(_any_run(cell).config, _any_run(cell).given) for key, cell in study.cells.items() if cell.runs
    }
    if not any(values.values()):
        return None
    columns = [
        Column("ours, final round", ("final mean", "final std", "final n")),
        Column("ours, maximum", ("max mean", "max std", "max n")),
        Column("paper", ("paper mean", "paper std")),
        Column("maximum minus paper", ("difference",)),
        Column("joint standard errors", ("standard_errors",)),
    ]

    def entries(cell: Cell) -> list[Entry]:
        stated = values.get((cell.method, cell.scenario))
        ours = list(results(study, cell, "max").values())
        mean, std = statistics.mean_and_std(ours)
        shown = [tables.spread_of(study, cell), tables.spread_of(study, cell, "max")]
        if not stated or not ours:
            return [*shown, Entry("–", (None, None)), number(None), number(None)]
        theirs = Entry(f"{stated[0]:.2f}" + (f" ± {stated[1]:.2f}" if stated[1] is not None else ""), stated)
        errors = None
        if stated[1] is not None and len(ours) > 1:
            errors = joint_standard_errors((mean, std, len(ours)), (*stated, PAPER_SEEDS))  # pyright: ignore
        return [*shown, theirs, number(mean - stated[0], signed=True), number(errors, 1, signed=True)]

    header, rows = tables.per_cell(study, columns, entries)
    notes = (
        f"The paper's values are over {PAPER_SEEDS} seeds and are maxima over evaluations on the test set.",
        *_scale(study),
        *tables.footnotes(study),
    )
    return Table("paper", f"{study.title}: the paper's values beside ours, test accuracy, %", header, rows, notes)


def _any_run(cell: Cell) -> Run:
    return next(iter(cell.runs.values()))


def _scale(study: Study) -> list[str]:
    """Returns a line with the settings that differ from the paper's, for every data set.

    These are settings that some run beside a value of the paper uses, other than those of its method, its seeds, and
    those that identify that value.
    """
    lines = []
    runs = [run for run in study.runs if published(run.config, run.given)]
    for dataset in dict.fromkeys(run.config.dataset for run in runs):
        used = [used_settings(Point("", run.config)) for run in runs if run.config.dataset == dataset]
        preset, official = flatten(Config()) | presets.dataset_preset(dataset), presets.FIDELITY["official"]
        differing = []
        for name in dict.fromkeys(name for ours in used for name in ours if name in preset):
            theirs = preset[name], official.get(name, preset[name])
            values = dict.fromkeys(ours[name] for ours in used if name in ours)
            is_compared = name not in NO_SCALE and name.split(".")[0] not in OF_PAPERS_METHOD
            if is_compared and any(value not in theirs for value in values):
                listed = " or ".join(map(_setting_text, values))
                differing.append(f"{name} {listed} (paper {_setting_text(preset[name])})")
        if differing:
            lines.append(f"{dataset}: other scale than the paper's: {', '.join(sorted(differing))}.")
    return lines


def _setting_text(value: Any) -> str:
    return "none" if value in (None, "") else value_text(value)


def joint_standard_errors(ours: tuple[float, float, int], theirs: tuple[float, float, int]) -> float:
    """Returns the difference of two means in joint standard errors, (a - b) / sqrt(s_a^2 / n_a + s_b^2 / n_b).

    Args:
        ours: mean, standard deviation and number of runs.
        theirs: the same of the other mean.

    >>> joint_standard_errors((80.0, 3.0, 9), (75.0, 4.0, 1))
    1.212678125181665
    """
    variance = ours[1] ** 2 / ours[2] + theirs[1] ** 2 / theirs[2]
    return (ours[0] - theirs[0]) / math.sqrt(variance) if variance > 0 else math.nan
