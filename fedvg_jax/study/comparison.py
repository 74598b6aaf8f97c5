"""Results in Python -> the tables of a report as pandas frames, and its findings as text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.config.checks import require_name
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import cells, collect, markup, report, tables
from fedvg_jax.study.cells import CHOICES, Choice, Run, Study
from fedvg_jax.study.sweep_folder import DOCUMENT, Stored, StoredPoint
from fedvg_jax.study.sweeps import SweepResult

if TYPE_CHECKING:
    import pandas


class Compared(NamedTuple):
    """What `compare` returns.

    Attributes:
        tables: Name of a table of the report -> its values; "runs" has a row per run.
        finding: The findings of the report, a sentence a line.
        page: The page that was written, or None.
    """

    tables: dict[str, pandas.DataFrame]
    finding: str
    page: Path | None = None


def compare(
    results: Any,
    baseline: str | None = None,
    metric: str | None = None,
    *,
    out: Path | str | None = None,
    choice: Choice = "final",
    partial: bool = False,
) -> Compared:
    """Returns the tables and the findings of a report on results or folders; numbers equal those of `fedvg report`.

    Args:
        results: what `run_sweep` returns, or histories, or folders of sweeps or runs; one or several.
        baseline: method that the others are compared with, or "all" for every pair; None for fedavg, or the first.
        metric: outcome, such as "loss", "macro_f1", "personal_accuracy_mean", or the name of a metric of your own;
            "min:NAME" and "max:NAME" declare which value is better where the name does not. None for test accuracy, or
            the loss of a task without it; for that of the clients' own models where a method has such models and all
            runs record it.
        out: folder to write the report to, with its page; None for none.
        choice: evaluation that stands for a run: final, at_best_val or max.
        partial: compare the runs that are finished.

    Raises:
        UsageError: as `fedvg report`.
    """
    if missing := [name for name in report.missing_packages() if name != "matplotlib" or out]:
        raise UsageError(f"compare needs {', '.join(missing)}; pip install 'fedvg_jax[report]'")
    several = [results] if isinstance(results, (str, os.PathLike, History, SweepResult)) else list(results)
    if not several:
        raise UsageError("compare needs results or folders; got none")
    dirs = [Path(each) for each in several if isinstance(each, (str, os.PathLike))]
    if len(dirs) == len(several):
        study = collect.collect(dirs, partial, metric)
    else:
        study, dirs = _study(several, partial, metric), ["results"]
    require_name("choice", choice, CHOICES)
    chosen = tables.options(study, baseline, None, choice)
    made = [*tables.all_tables(study, chosen), tables.runs(study)]
    frames = {table.name: markup.values(table) for table in made}
    page = report.write_study(study, dirs, out, chosen, command="fedvg_jax.compare").paths[-1] if out else None
    return Compared(frames, "\n".join(report.findings(study, chosen)), page)


def _study(results: Sequence[Any], partial: bool, metric: str | None) -> Study:
    """Returns the study of results in memory, or of the sweeps and runs in whose folders they are."""
    listed = [SweepResult("", {}, each, each.config) if isinstance(each, History) else each for each in results]
    if wrong := [each for each in listed if not isinstance(each, SweepResult)]:
        raise UsageError(f"compare takes results of run_sweep, histories, or folders; got {type(wrong[0]).__name__}")
    folders = [each.result.folder for each in listed if isinstance(each.result, History) and each.result.folder]
    if not folders:
        read = [_in_memory(each, i) for i, each in enumerate(listed)]
        axes = tuple(dict.fromkeys(name for each in listed for name in each.values))
        points = {each.name: StoredPoint(each.values, each.config) for each in listed if each.config}
        sweeps = [Stored("results", axes, points, {}, {})] if all(points) else []
        return collect.make_study(read, sweeps, ["results"], partial, metric)
    sweeps = {f: f.parent.parent for f in folders if (f.parent.parent / DOCUMENT).exists()}
    read, stored = collect.read_all([*dict.fromkeys([*sweeps.values(), *(f for f in folders if f not in sweeps)])])
    kept = [each for each in read if isinstance(each, str) or not each.run or each.run.folder in folders]
    return collect.make_study(kept, stored, sorted({*map(str, sweeps.values())}) or folders, partial, metric)


def _in_memory(each: SweepResult, index: int) -> collect.Folder:
    """Returns a result as the files of a run folder would give it."""
    name = each.name or f"result {index + 1}"
    assert each.config is not None, "every result has its settings"
    settings = cells.settings_of(each.config, each.values, each.given)
    if isinstance(each.result, History):
        return collect.Folder(settings, Run(Path(name), each.result, {}, {}, (), each.given))
    return collect.Folder(settings, failure=f"{name}: {each.result.kind} in round {each.result.round}")
