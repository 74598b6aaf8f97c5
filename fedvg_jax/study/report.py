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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedvg_jax.config import method_title
from fedvg_jax.config.checks import require_name
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import statistics, tables
from fedvg_jax.study.cells import CHOICES, Choice, Run, Study, scenario_text, settings_of, value_text
from fedvg_jax.study.collect import Folder, collect, make_study, read_all
from fedvg_jax.study.figures import FIGURES, base, curves
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.markup import FORMATS, Table, frame, html_table, hypertext, plain_html
from fedvg_jax.study.sweep_folder import DOCUMENT, Stored, StoredPoint, SweepResult, count

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
        partial: report the runs that are finished, and mark cells that lack some.
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
    return write_study(study, dirs, out, chosen, figures, command)


def write_study(
    study: Study,
    dirs: Sequence[Path | str],
    out: Path | str | None,
    chosen: tables.Options,
    figures: Sequence[str] | None = None,
    command: str = "",
) -> Written:
    """Writes the tables, the figures and the page of a study; see `write`."""
    made, sentences = tables.all_tables(study, chosen), findings(study, chosen)
    drawings = FIGURES | {"differences": functools.partial(curves.differences, chosen=chosen)}
    again = shlex.join(["python", "-m", "fedvg_jax.report", *map(str, dirs)])
    folder = files.user_path(out) if out else files.user_path(dirs[0]) / "report"
    drawn: list[tuple[Drawing, list[Path]]] = []
    paths = []
    with files.writing(folder, "--out"), base.drawing():
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        for table, (suffix, form) in itertools.product((*made, tables.runs(study)), FORMATS.items()):
            paths.append(folder / "tables" / f"{table.name}.{suffix}")
            files.replace(paths[-1], form(table))
        for name in FIGURES if figures is None else figures:
            drawn += [(drawing, base.save(drawing, folder / "figures")) for drawing in drawings[name](study)]
        paths += [path for _, several in drawn for path in several]
        files.replace(folder / PAGE, page(study, made, sentences, drawn, command or again))
    return Written(made, [*paths, folder / PAGE], sentences)


def findings(study: Study, chosen: tables.Options) -> list[str]:
    """Returns what the comparisons say, in sentences."""
    return statistics.findings(study, chosen.pairs(study), chosen.choice)


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
    of_findings = [_figure(drawing, png) for drawing, (png, *_) in drawn if drawing.name == "differences"]
    return TEMPLATE.substitute(
        title=plain_html(study.title),
        findings="".join(f"<p>{plain_html(line)}</p>\n" for line in sentences) + "".join(of_findings),
        summary=plain_html(summary(study)),
        notes="".join(f"<p class=note>{plain_html(f'Note: {note}.')}</p>\n" for note in study.notes),
        tables="".join(f"<div class=scroll>{hypertext(table)}</div>\n" for table in made),
        figures="".join(_figure(drawing, png) for drawing, (png, *_) in drawn if drawing.name != "differences"),
        settings=settings(study),
        command=plain_html(command),
        provenance=provenance(study),
    )


def summary(study: Study) -> str:
    """Returns a sentence on the size of the study."""
    scenarios = [text for s in study.scenarios if (text := scenario_text(s))]
    where = f" in {len(scenarios)} settings ({'; '.join(scenarios)})" if len(scenarios) > 1 else ""
    runs, methods = count(len(study.runs), "run"), count(len(study.methods), "method")
    return f"{runs} of {methods} ({'; '.join(map(method_title, study.methods))}){where}."


def _figure(drawing: Drawing, path: Path) -> str:
    """Returns a figure with its picture inside."""
    data, width = base64.b64encode(path.read_bytes()).decode(), round(130 * drawing.figure.get_figwidth())
    alt = plain_html(drawing.title)
    return f'<figure><img width="{width}" alt="{alt}" src="data:image/png;base64,{data}"></figure>\n'


# --- settings and provenance


def settings(study: Study) -> str:
    """Returns the settings that all runs share, as an element that opens."""
    shared = [(name, value_text(value)) for name, value in sorted(study.settings.items())]
    table = _table("shared", ("setting", "value"), shared)
    return f"<details><summary>Settings that all runs share</summary><div class=scroll>{table}</div></details>\n"


def provenance(study: Study) -> str:
    """Returns a table of the machines, versions and commits of the runs, with the number of runs of each."""
    kinds = Counter(_origin(part) for run in study.runs for part in run.manifest.get("runs", [])[-1:])
    rows = [(str(count), *kind) for kind, count in sorted(kinds.items())]
    table = _table("machines", ("runs", "commit", "versions", "machine", "device"), rows)
    return f'<div class="scroll wide">{table}</div>\n'


def _table(name: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of plain texts as a table."""
    return html_table(name, titles, [[plain_html(text) for text in row] for row in rows])


def _origin(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Returns commit, versions, machine and device of one part of a run."""
    git = part.get("git") or {}
    commit = str(git.get("commit", "no checkout"))[:12] + (" with changes" if git.get("changed") else "")
    versions = ", ".join(f"{name} {version}" for name, version in part.get("versions", {}).items())
    machine = f"{part.get('system', '')}, Python {part.get('python', '')}, {part.get('cores', '?')} cores"
    return commit, versions, machine, f"{part.get('devices', 1)} x {part.get('device', '')}"


# --- from Python


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
    if missing := [name for name in missing_packages() if name != "matplotlib" or out]:
        raise UsageError(f"compare needs {', '.join(missing)}; pip install 'fedvg_jax[report]'")
    several = [results] if isinstance(results, (str, os.PathLike, History, SweepResult)) else list(results)
    if not several:
        raise UsageError("compare needs results or folders; got none")
    dirs = [Path(each) for each in several if isinstance(each, (str, os.PathLike))]
    if len(dirs) == len(several):
        study = collect(dirs, partial, metric)
    else:
        study, dirs = _study(several, partial, metric), ["results"]
    require_name("choice", choice, CHOICES)
    chosen = tables.options(study, baseline, None, choice)
    made = [*tables.all_tables(study, chosen), tables.runs(study)]
    frames = {table.name: frame(table) for table in made}
    page = write_study(study, dirs, out, chosen, command="fedvg_jax.compare").paths[-1] if out else None
    return Compared(frames, "\n".join(findings(study, chosen)), page)


def _study(results: Sequence[Any], partial: bool, metric: str | None) -> Study:
    """Returns the study of results in memory, or of the folders that hold them."""
    listed = [SweepResult("", {}, each, each.config) if isinstance(each, History) else each for each in results]
    if wrong := [each for each in listed if not isinstance(each, SweepResult)]:
        raise UsageError(f"compare takes results of run_sweep, histories, or folders; got {type(wrong[0]).__name__}")
    folders = [each.result.folder for each in listed if isinstance(each.result, History) and each.result.folder]
    if not folders:
        read = [_in_memory(each, i) for i, each in enumerate(listed)]
        axes = tuple(dict.fromkeys(name for each in listed for name in each.values))
        points = {each.name: StoredPoint(each.values, each.config) for each in listed if each.config}
        sweeps = [Stored("results", axes, points, {}, {})] if all(points) else []
        return make_study(read, sweeps, ["results"], partial, metric)
    sweeps = {f: f.parent.parent for f in folders if (f.parent.parent / DOCUMENT).exists()}
    read, stored = read_all([*dict.fromkeys([*sweeps.values(), *(f for f in folders if f not in sweeps)])])
    kept = [each for each in read if isinstance(each, str) or not each.run or each.run.folder in folders]
    return make_study(kept, stored, sorted({*map(str, sweeps.values())}) or folders, partial, metric)


def _in_memory(each: SweepResult, index: int) -> Folder:
    """Returns a result as the files of a run folder would give it."""
    name = each.name or f"result {index + 1}"
    assert each.config is not None, "every result has its settings"
    settings = settings_of(each.config, each.values, each.given)
    if isinstance(each.result, History):
        return Folder(settings, Run(Path(name), each.result, {}, {}, (), each.given))
    return Folder(settings, failure=f"{name}: {each.result.kind} in round {each.result.round}")
