"""Reports: run folders -> a study -> tables, figures, and one HTML page with all of them, which needs no network."""

from __future__ import annotations

import base64
import importlib.util
import os
import shlex
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedvg_jax.config.checks import require_name
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import reading, statistics, tables
from fedvg_jax.study.collect import collect, make_study
from fedvg_jax.study.figures import FIGURES, base
from fedvg_jax.study.groups import Study
from fedvg_jax.study.markup import Table, csv_text, html_table, hypertext, latex, plain_html
from fedvg_jax.study.outcomes import CHOICES, Choice
from fedvg_jax.study.places import settings_of, value_text
from fedvg_jax.study.reading import Folder, read_all
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_folder import DOCUMENT, Failure, Stored, StoredTrial, SweepResult, count

if TYPE_CHECKING:
    import pandas

PAGE = "report.html"
EXTRA = ("scipy", "matplotlib", "pandas", "jinja2")
"""Modules of the packages of the extra `report`."""


ORIGIN = ("git.commit", "git.changed", "system", "python", "cores", "devices", "device")
"""What a page shows of the machine of a run, with the versions of packages."""


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
    choice: str = "final",
    metric: str | None = None,
    command: str = "",
) -> Written:
    """Writes the tables, the figures and the page of run folders.

    The same runs give the same bytes, except for the seconds in the tables of means and of runs.

    Args:
        dirs: sweep folders, run folders, or folders of these.
        out: folder of the report; None for `report` in the first of `dirs`.
        baseline: method that the others are compared with, or "all" for every pair; None for fedavg.
        target, partial, metric: see `collect`.
        choice: the evaluation that stands for a run: final, at_best_val or max.
        command: that writes this report, for the page; empty for the plain one.

    Raises:
        UsageError: the runs cannot be compared, some are missing, an option is unknown, or a package is missing.
    """
    require_name("choice", choice, CHOICES)
    require_packages()
    study = collect(dirs, partial, metric, target)
    chosen = tables.options(study, baseline, cast("Choice", choice))
    again = shlex.join(["python", "-m", "fedvg_jax.report", *map(str, dirs)])
    folder = files.user_path(out) if out else files.user_path(dirs[0]) / "report"
    return write_study(study, folder, chosen, command or again)


def write_study(
    study: Study, folder: Path, chosen: tables.Options, command: str = "fedvg_jax.compare"
) -> Written:
    """Writes the tables, the figures and the page of a study; see `write`."""
    made, sentences = tables.all_tables(study, chosen), findings(study, chosen)
    texts = {f"{table.name}.csv": csv_text(table.numbers) for table in made}
    texts |= {f"{table.name}.tex": latex(table) for table in made}
    texts["runs.csv"] = csv_text(tables.runs(study))
    paths, pictures = [], []
    with files.writing(folder, "--out"), base.drawing():
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            paths.append(folder / "tables" / name)
            files.replace(paths[-1], text)
        for draw in FIGURES:
            for drawing in draw(study, chosen):
                paths += base.save(drawing, folder / "figures")
                pictures.append(_picture(drawing, paths[-2]))
        files.replace(folder / PAGE, page(study, made, sentences, pictures, command))
    return Written(made, [*paths, folder / PAGE], sentences)


def findings(study: Study, chosen: tables.Options) -> list[str]:
    """Returns what the comparisons say, in sentences; [] for one method."""
    return statistics.findings(study, chosen.compared(study), chosen.choice)


def missing_packages() -> list[str]:
    """Returns the modules that a report needs and that are not installed."""
    return [name for name in EXTRA if importlib.util.find_spec(name) is None]


def require_packages() -> None:
    """Raises UsageError without the packages that a report needs."""
    if missing := missing_packages():
        raise UsageError(f"reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'")


TEMPLATE = string.Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
"""The page; it may load nothing but itself."""


def page(
    study: Study,
    made: Sequence[Table],
    sentences: Sequence[str],
    pictures: Sequence[str],
    command: str,
) -> str:
    """Returns the page.

    Args:
        study: what is reported.
        made: the tables, in their order.
        sentences: the findings.
        pictures: the figures as elements.
        command: that writes this report again.
    """
    import pandas

    runs, methods = count(len(study.runs), "run"), count(len(study.methods), "method")
    shared = [(name, value_text(value)) for name, value in sorted(study.settings.items())]
    settings = pandas.DataFrame(shared, columns=["setting", "value"])
    return TEMPLATE.substitute(
        title=plain_html(study.title),
        summary=f"{runs} of {methods} in {count(len(study.conditions), 'condition')}.",
        findings="".join(f"<p>{plain_html(line)}</p>\n" for line in sentences),
        tables="".join(f"<div class=scroll>{hypertext(table)}</div>\n" for table in made),
        figures="".join(pictures),
        settings=html_table("shared", settings),
        command=plain_html(command),
        provenance=html_table("machines", provenance(study)),
    )


def _picture(drawing: base.Drawing, png: Path) -> str:
    """Returns a figure as an element with its picture inside."""
    data = base64.b64encode(png.read_bytes()).decode()
    width, alt = round(130 * drawing.figure.get_figwidth()), plain_html(drawing.title)
    return (
        f'<figure><img width="{width}" alt="{alt}" src="data:image/png;base64,{data}"></figure>\n'
    )


def provenance(study: Study) -> pandas.DataFrame:
    """Returns the machines, versions and commits of the runs, with the number of runs of each."""
    import pandas

    parts = pandas.json_normalize([(run.manifest.get("runs") or [{}])[-1] for run in study.runs])
    columns = [*ORIGIN, *parts.filter(regex=r"^versions\.")]
    origins = parts.reindex(columns=columns).astype(object).fillna("–").astype(str)
    return origins.value_counts(sort=False).reset_index(name="runs").astype(str)


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
    target: float | None = None,
) -> Compared:
    """Returns the tables and the findings of a report on results or folders, with the numbers of `fedvg report`.

    Args:
        results: what `run_sweep` returns, or histories, or folders of sweeps or runs; one or several.
        baseline: method that the others are compared with, or "all" for every pair; None for fedavg, or the first.
        metric: outcome, such as "loss", "macro_f1", "personal_accuracy_mean", or the name of a custom metric;
            "min:NAME" and "max:NAME" say that lower or higher values are better, if no `fv.Metric` does. None for
            test accuracy, or the loss of a task without it; or for the accuracy of the clients' personal models, if a
            method has such models and all runs record it.
        out: folder to write the report to, with its page; None for none.
        choice: evaluation that stands for a run: final, at_best_val or max.
        partial: compare the runs that are finished.
        target: accuracy from 0 to 1, or loss, for the metrics "rounds_to_target" and "time_to_target".

    Raises:
        UsageError: as `fedvg report`.
    """
    require_packages()
    require_name("choice", choice, CHOICES)
    is_one = isinstance(results, (str, os.PathLike, History, SweepResult))
    several: list[Any] = [results] if is_one or not isinstance(results, Iterable) else [*results]
    if several and all(isinstance(each, (str, os.PathLike)) for each in several):
        study = collect([*map(Path, several)], partial, metric, target)
    else:
        read, sweeps, sources = _read_results(several)
        study = make_study(read, sweeps, sources, partial, metric, target)
    chosen = tables.options(study, baseline, choice)
    frames = {table.name: table.numbers for table in tables.all_tables(study, chosen)}
    frames["runs"] = tables.runs(study)
    page = write_study(study, files.user_path(out), chosen).paths[-1] if out else None
    return Compared(frames, "\n".join(findings(study, chosen)), page)


def _read_results(results: Sequence[Any]) -> tuple[list[Folder], list[Stored], list[Path | str]]:
    """Returns the runs of results in memory, or of the folders that hold them, with their sweeps and sources."""
    listed: list[SweepResult] = [
        SweepResult("", {}, each, each.config) if isinstance(each, History) else each
        for each in results
    ]
    if not all(isinstance(each, SweepResult) for each in listed):
        raise UsageError(
            f"compare takes results of run_sweep, histories, or folders; got {results!r:.99}"
        )
    folders = [each.result.folder for each in listed if isinstance(each.result, History)]
    sources = list(dict.fromkeys(_source(folder) for folder in folders if folder))
    read, sweeps = read_all(sources)
    kept = [each for each in read if not each.run or each.run.folder in folders]
    stored = {name for sweep in sweeps for name in sweep.trials}
    in_memory = []
    for each in listed:
        is_stored = each.result.folder if isinstance(each.result, History) else each.name in stored
        in_memory += [] if is_stored else [each]
    kept += [_in_memory(each, f"result {i + 1}") for i, each in enumerate(in_memory)]
    return kept, sweeps + _sweep_in_memory(in_memory), [*sources] or ["results"]


def _source(folder: Path) -> Path:
    """Returns the sweep of a run folder; the folder itself where it has none."""
    sweep = folder.parent.parent
    return sweep if (sweep / DOCUMENT).exists() else folder


def _sweep_in_memory(listed: Sequence[SweepResult]) -> list[Stored]:
    """Returns the sweep that results are from, if they are all of it; otherwise they are single runs."""
    planned = {each.sweep for each in listed}
    if len(planned) != 1 or {each.name for each in listed} != {*listed[0].sweep}:
        return []
    axes = tuple(dict.fromkeys(name for each in listed for name in each.values))
    trials = {each.name: StoredTrial(each.values, each.config) for each in listed if each.config}
    return [Stored("results", axes, trials, {}, {})]


def _in_memory(each: SweepResult, default: str) -> Folder:
    """Returns a result as the files of a run folder would give it."""
    name, result = each.name or default, each.result
    assert each.config is not None, "every result has its settings"
    if isinstance(result, Failure):
        return reading.offered(name, settings_of(each.config, each.values, each.custom), result)
    custom = reading.passed(each.custom, result.summary)
    settings = settings_of(each.config, reading.names_of(result, each.values), custom)
    manifest = {"code": each.digests, "data": each.digests.get("data")}
    if "partition" in each.digests:
        manifest["partition"] = each.digests["partition"]
    run = Run(Path(name), result, {}, manifest, custom=custom)
    return reading.offered(name, settings, run)
