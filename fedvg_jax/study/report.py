"""Reports: run folders -> a study -> tables, figures, and one HTML page with all of them, which needs no network."""

from __future__ import annotations

import base64
import functools
import importlib.util
import itertools
import os
import shlex
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedvg_jax.config import method_title
from fedvg_jax.config.checks import require_name
from fedvg_jax.config.uses import PASSED
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import statistics, tables
from fedvg_jax.study.collect import collect, make_study
from fedvg_jax.study.figures import FIGURES, base, curves
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Study
from fedvg_jax.study.markup import FORMATS, Table, frame, html_table, hypertext, plain_html
from fedvg_jax.study.outcomes import CHOICES, Choice, evaluations
from fedvg_jax.study.places import condition_text, settings_of, value_text
from fedvg_jax.study.reading import Folder, failure_text, read_all
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_folder import DOCUMENT, Failure, Stored, StoredTrial, SweepResult, count

if TYPE_CHECKING:
    import pandas

PAGE = "report.html"
EXTRA = ("scipy", "matplotlib", "pandas")
"""Modules of the packages of the extra `report`."""


class Written(NamedTuple):
    """What was written."""

    tables: list[Table]
    paths: list[Path]
    """All files, in the order in which they were written."""
    findings: list[str]
    """A sentence for every setting, and how they are decided."""


def write(
    dirs: Sequence[Path | str],
    out: Path | str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    partial: bool = False,
    figures: Sequence[str] | None = None,
    choice: str = "final",
    metric: str | None = None,
    command: str = "",
) -> Written:
    """Writes the tables, the figures and the page of run folders.

    The same runs give the same bytes, except for the seconds in the tables of costs and of runs.

    Args:
        dirs: sweep folders, run folders, or folders of these.
        out: folder of the report; None for `report` in the first of `dirs`.
        baseline: method that the others are compared with, or "all" for every pair; None for fedavg.
        target: accuracy from 0 to 1, or loss, for "rounds to the target"; None for the baseline's final mean.
        partial: report the runs that are finished, and mark groups that lack some.
        figures: names of `FIGURES`; None for all that the runs have values for.
        choice: the evaluation that stands for a run in the tables of accuracy and effects: final, at_best_val or max.
        metric: see `collect`.
        command: that writes this report, for the page; empty for the plain one.

    Raises:
        UsageError: the runs cannot be compared, some are missing, an option is unknown, or a package is missing.
    """
    if not dirs:
        raise UsageError("name the folder of a sweep or of runs")
    require_name("choice", choice, CHOICES)
    for name in figures or ():
        require_name("figure", name, FIGURES)
    if missing := missing_packages():
        raise UsageError(f"reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'")
    study = collect(dirs, partial, metric)
    chosen = tables.options(study, baseline, target, cast("Choice", choice))
    again = shlex.join(["python", "-m", "fedvg_jax.report", *map(str, dirs)])
    folder = files.user_path(out) if out else files.user_path(dirs[0]) / "report"
    return write_study(study, folder, chosen, figures, command or again)


def write_study(
    study: Study,
    folder: Path,
    chosen: tables.Options,
    figures: Sequence[str] | None = None,
    command: str = "fedvg_jax.compare",
) -> Written:
    """Writes the tables, the figures and the page of a study; see `write`."""
    made, sentences = tables.all_tables(study, chosen), findings(study, chosen)
    drawings = FIGURES | {"differences": functools.partial(curves.differences, chosen=chosen)}
    drawn: list[tuple[Drawing, list[Path]]] = []
    paths = []
    with files.writing(folder, "--out"), base.drawing(names_of(study)):
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        for table, (suffix, form) in itertools.product(
            (*made, tables.runs(study)), FORMATS.items()
        ):
            paths.append(folder / "tables" / f"{table.name}.{suffix}")
            files.replace(paths[-1], form(table))
        for name in FIGURES if figures is None else figures:
            for drawing in drawings[name](study):
                drawn.append((drawing, base.save(drawing, folder / "figures")))
                paths += drawn[-1][1]
        files.replace(folder / PAGE, page(study, made, sentences, drawn, command))
    return Written(made, [*paths, folder / PAGE], sentences)


def findings(study: Study, chosen: tables.Options) -> list[str]:
    """Returns what the comparisons say, in sentences; [] for one method."""
    if len(study.methods) == 1:
        return []
    return statistics.findings(study, chosen.compared(study), chosen.choice)


def names_of(study: Study) -> list[str]:
    """Returns the texts of a study that its figures show."""
    classes = [str(name) for run in study.runs for name in run.partition.get("class_names", ())]
    conditions = map(condition_text, study.conditions)
    return [
        study.title,
        study.outcome.title,
        *map(method_title, study.methods),
        *conditions,
        *dict.fromkeys(classes),
    ]


def missing_packages() -> list[str]:
    """Returns the modules that a report needs and that are not installed."""
    return [name for name in EXTRA if importlib.util.find_spec(name) is None]


TEMPLATE = string.Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
"""The page; it may load nothing but itself."""


def page(
    study: Study,
    made: Sequence[Table],
    sentences: Sequence[str],
    drawn: Sequence[tuple[Drawing, Sequence[Path]]],
    command: str,
) -> str:
    """Returns the page.

    Args:
        study: what is reported.
        made: the tables, in their order.
        sentences: the findings.
        drawn: figures with the files of each, the PNG first.
        command: that writes this report again.
    """
    first, others = [], []
    for drawing, (png, *_) in drawn:
        group = first if drawing.name == "differences" else others
        group.append(_figure(drawing, png))
    paragraphs = [f"<p>{plain_html(line)}</p>\n" for line in sentences]
    notes = [f"<p class=note>Note: {plain_html(note)}.</p>\n" for note in study.notes]
    return TEMPLATE.substitute(
        title=plain_html(study.title),
        findings="".join([*paragraphs, *first]),
        summary=plain_html(summary(study)),
        notes="".join(notes),
        tables="".join(f"<div class=scroll>{hypertext(table)}</div>\n" for table in made),
        figures="".join(others),
        settings=settings(study),
        command=plain_html(command),
        provenance=provenance(study),
    )


def summary(study: Study) -> str:
    """Returns a sentence on the size of the study."""
    runs, methods = count(len(study.runs), "run"), count(len(study.methods), "method")
    titles = "; ".join(map(method_title, study.methods))
    conditions = "; ".join(map(condition_text, study.conditions))
    where = (
        f" in {len(study.conditions)} settings ({conditions})" if len(study.conditions) > 1 else ""
    )
    return f"{runs} of {methods} ({titles}){where}."


def _figure(drawing: Drawing, path: Path) -> str:
    """Returns a figure with its picture inside."""
    data, width = (
        base64.b64encode(path.read_bytes()).decode(),
        round(130 * drawing.figure.get_figwidth()),
    )
    alt = plain_html(drawing.title)
    return (
        f'<figure><img width="{width}" alt="{alt}" src="data:image/png;base64,{data}"></figure>\n'
    )


# --- settings and provenance


def settings(study: Study) -> str:
    """Returns the settings that all runs share, as an element that opens."""
    shared = [(name, value_text(value)) for name, value in sorted(study.settings.items())]
    table = _table("shared", ("setting", "value"), shared)
    return f"<details><summary>Settings that all runs share</summary><div class=scroll>{table}</div></details>\n"


def provenance(study: Study) -> str:
    """Returns a table of the machines, versions and commits of the runs, with the number of runs of each."""
    parts = [run.manifest["runs"][-1] for run in study.runs if run.manifest.get("runs")]
    kinds = Counter(map(_origin, parts))
    rows = [(str(count), *kind) for kind, count in sorted(kinds.items())]
    table = _table("machines", ("runs", "commit", "versions", "machine", "device"), rows)
    return f'<div class="scroll wide">{table}</div>\n'


def _table(name: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of plain texts as a table."""
    escaped = [list(map(plain_html, row)) for row in rows]
    return html_table(name, titles, escaped)


def _origin(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Returns commit, versions, machine and device of one part of a run."""
    git = part.get("git") or {}
    commit = str(git.get("commit", "no checkout"))[:12]
    if git.get("changed"):
        commit += " with changes"
    versions = [f"{name} {version}" for name, version in part.get("versions", {}).items()]
    system, python, cores = part.get("system", ""), part.get("python", ""), part.get("cores", "?")
    machine = f"{system}, Python {python}, {cores} cores"
    device = f"{part.get('devices', 1)} x {part.get('device', '')}"
    return commit, ", ".join(versions), machine, device


# --- from Python


class Compared(NamedTuple):
    """What `compare` returns.

    Attributes:
        tables: Name of a table of the report -> its values; "runs" has a row per run.
        finding: The findings of the report, line by line.
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
    """Returns the tables and the findings of a report on results or folders, with the numbers of `fedvg report`.

    Args:
        results: what `run_sweep` returns, or histories, or folders of sweeps or runs; one or several.
        baseline: method that the others are compared with, or "all" for every pair; None for fedavg, or the first.
        metric: outcome, such as "loss", "macro_f1", "personal_accuracy_mean", or the name of a metric of your own;
            "min:NAME" and "max:NAME" say that lower or higher values are better, if no `fv.Metric` does. None for
            test accuracy, or the loss of a task without it; or for the accuracy of the clients' own models, if a method
            has such models and all runs record it.
        out: folder to write the report to, with its page; None for none.
        choice: evaluation that stands for a run: final, at_best_val or max.
        partial: compare the runs that are finished.

    Raises:
        UsageError: as `fedvg report`.
    """
    if missing := [name for name in missing_packages() if name != "matplotlib" or out]:
        raise UsageError(f"compare needs {', '.join(missing)}; pip install 'fedvg_jax[report]'")
    require_name("choice", choice, CHOICES)
    several: list[Any] = _as_list(results)
    if not several:
        raise UsageError("compare needs results or folders; got none")
    are_folders = all(isinstance(each, (str, os.PathLike)) for each in several)
    study = (
        collect(list(map(Path, several)), partial, metric)
        if are_folders
        else _of_results(several, partial, metric)
    )
    chosen = tables.options(study, baseline, None, choice)
    made = [*tables.all_tables(study, chosen), tables.runs(study)]
    frames = {table.name: frame(table) for table in made}
    page = write_study(study, files.user_path(out), chosen).paths[-1] if out else None
    return Compared(frames, "\n".join(findings(study, chosen)), page)


def _as_list(results: Any) -> list[Any]:
    """Returns one or several results as a list; UsageError for what is none."""
    if isinstance(results, (str, os.PathLike, History, SweepResult)):
        return [results]
    if isinstance(results, Iterable):
        return list(results)
    raise UsageError(
        f"compare takes results of run_sweep, histories, or folders; got {results!r:.99}"
    )


def _of_results(results: Sequence[Any], partial: bool, metric: str | None) -> Study:
    """Returns the study of results in memory, or of the folders that hold them."""
    listed = [
        SweepResult("", {}, each, each.config) if isinstance(each, History) else each
        for each in results
    ]
    for each in listed:
        if not isinstance(each, SweepResult):
            raise UsageError(
                f"compare takes results of run_sweep, histories, or folders; got {type(each).__name__}"
            )
    folders = [
        each.result.folder
        for each in listed
        if isinstance(each.result, History) and each.result.folder
    ]
    sources = list(dict.fromkeys(map(_source, folders)))
    read, lost, sweeps = read_all(sources)
    kept = [each for each in read if not each.run or each.run.folder in folders]
    in_folders = {name for sweep in sweeps for name in sweep.trials}
    in_memory = [each for each in listed if not _is_stored(each, in_folders)]
    kept += [_in_memory(each, f"result {i + 1}") for i, each in enumerate(in_memory)]
    sweeps += _sweep_in_memory(in_memory)
    return make_study(kept, lost, sweeps, sources or ["results"], partial, metric)


def _source(folder: Path) -> Path:
    """Returns the sweep of a run folder; the folder itself where it has none."""
    sweep = folder.parent.parent
    return sweep if (sweep / DOCUMENT).exists() else folder


def _is_stored(each: SweepResult, in_folders: Collection[str]) -> bool:
    """Returns whether a folder holds a result: a history's, or a failure's of a sweep."""
    if isinstance(each.result, History):
        return each.result.folder is not None
    return each.name in in_folders


def _sweep_in_memory(listed: Sequence[SweepResult]) -> list[Stored]:
    """Returns the sweep that results are from, if they are all of it; otherwise they are runs of their own."""
    planned = {each.sweep for each in listed}
    if len(planned) != 1 or {each.name for each in listed} != {*listed[0].sweep}:
        return []
    axes = tuple(dict.fromkeys(name for each in listed for name in each.values))
    trials = {each.name: StoredTrial(each.values, each.config) for each in listed if each.config}
    return [Stored("results", axes, trials, {}, {})]


def _in_memory(each: SweepResult, default: str) -> Folder:
    """Returns a result as the files of a run folder would give it."""
    name = each.name or default
    assert each.config is not None, "every result has its settings"
    summary = {} if isinstance(each.result, Failure) else each.result.summary
    custom = each.custom or {
        argument: text for argument, text in summary.get("custom", {}).items() if argument in PASSED
    }
    settings = settings_of(each.config, {**summary.get("names", {}), **each.values}, custom)
    if isinstance(each.result, Failure):
        return Folder(
            name, settings, failure=f"{name}: {failure_text(each.result)}", kind=each.result.kind
        )
    if not evaluations(each.result.records):
        return Folder(name, settings, missing=f"{name}: no evaluation in its history")
    manifest = {"code": each.digests, "data": each.digests.get("data")}
    if "partition" in each.digests:
        manifest["partition"] = each.digests["partition"]
    return Folder(name, settings, Run(Path(name), each.result, {}, manifest, custom=custom))
