"""Writes the report of a study: tables, figures, and one HTML page with all of them, which needs no network."""

from __future__ import annotations

import base64
import importlib.util
import os
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import statistics, sweep_folder, tables
from fedvg_jax.study.collect import collect, make_study
from fedvg_jax.study.figures import FIGURES, base
from fedvg_jax.study.groups import Study
from fedvg_jax.study.markup import Table, csv_text, html_table, hypertext, latex, plain_html
from fedvg_jax.study.outcomes import Choice
from fedvg_jax.study.places import value_text
from fedvg_jax.study.reading import Folder, read_result, read_trial
from fedvg_jax.study.sweep_folder import Stored, SweepResult, count
from fedvg_jax.study.sweep_trials import Trial

if TYPE_CHECKING:
    import pandas

PAGE = "report.html"
EXTRA = ("scipy", "matplotlib", "pandas", "jinja2")
"""Modules of the packages of the extra `report`."""


ORIGIN = ("git.commit", "git.changed", "system", "python", "cores", "devices", "device")
"""What a page shows of the machine of a run, with the versions of packages."""


class Compared(NamedTuple):
    """The tables and the findings of a report.

    Attributes:
        tables: Name of a table of the report -> its values; "runs" has a row per run.
        finding: The findings of the report, line by line.
        paths: The files that were written; the page is the last.
    """

    tables: dict[str, pandas.DataFrame]
    finding: str
    paths: Sequence[Path] = ()

    @property
    def page(self) -> Path | None:
        """The page that was written, or None."""
        return self.paths[-1] if self.paths else None

    @property
    def ending(self) -> list[str]:
        """The lines with which commands end: the page, how the methods are compared, and then the answer."""
        lines = self.finding.splitlines()
        return [f"report of {len(self.paths)} files: {self.page}", *lines[-1:], *lines[:-1]]


def write(
    results: Any,
    command: str,
    out: Path | str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    partial: bool = False,
    choice: str = "final",
    metric: str | None = None,
) -> Compared:
    """Compares results or folders, and writes the tables, the figures and the page to `out`, if that is set.

    The same runs give the same bytes, except for the seconds in the tables of means and of runs.

    Args:
        command: that writes this report, for the page.
        results, out, baseline, target, partial, choice, metric: see `compare`.

    Raises:
        UsageError: the runs cannot be compared, some are missing, an option is unknown, or a package is missing.
    """
    check_packages()
    is_one = isinstance(results, (str, History)) or not isinstance(results, Iterable)
    several: list[Any] = [results] if is_one else [*results]
    if several and all(isinstance(each, (str, os.PathLike)) for each in several):
        study = collect(several, partial, metric, target)
    else:
        study = make_study(*_read_results(several), ["results"], partial, metric, target)
    folder = files.user_path(out) if out else None
    return make_report(tables.comparing(study, baseline, choice), folder, command)


def check_packages() -> None:
    """Raises UsageError without the packages that a report needs."""
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise UsageError(f"reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'")


def make_report(study: Study, folder: Path | None, command: str) -> Compared:
    """Returns the tables and findings of a study, and writes its report to a folder, if there is one.

    Args:
        study: what is reported.
        folder: of the report; None to write nothing.
        command: that writes this report, for the page.
    """
    made, sentences = tables.all_tables(study), statistics.findings(study)
    frames = {table.name: table.numbers for table in made} | {"runs": tables.runs(study)}
    texts = {f"{name}.csv": csv_text(frame) for name, frame in frames.items()}
    texts |= {f"{table.name}.tex": latex(table) for table in made}
    paths, pictures = [], []
    compared = Compared(frames, "\n".join(sentences))
    if folder is None:
        return compared
    with files.writing(folder, "--out"), base.drawing():
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            paths.append(folder / "tables" / name)
            files.replace(paths[-1], text)
        for draw in FIGURES:
            for drawing in draw(study):
                paths += base.save(drawing, folder / "figures")
                pictures.append(_picture(drawing, paths[-2]))
        files.replace(folder / PAGE, page(study, made, sentences, pictures, command))
    return compared._replace(paths=[*paths, folder / PAGE])


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
    alt = plain_html(drawing.title)
    return f'<figure><img width="936" alt="{alt}" src="data:image/png;base64,{data}"></figure>\n'


def provenance(study: Study) -> pandas.DataFrame:
    """Returns the machines, versions and commits of the runs, with the number of runs of each."""
    import pandas

    parts = pandas.json_normalize([(run.manifest.get("runs") or [{}])[-1] for run in study.runs])
    columns = [*ORIGIN, *parts.filter(regex=r"^versions\.")]
    origins = parts.reindex(columns=columns).astype(object).fillna("–").astype(str)
    return origins.value_counts(sort=False).reset_index(name="runs").astype(str)


# --- from Python


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
    return write(results, "fedvg_jax.compare", out, baseline, target, partial, choice, metric)


def _read_results(results: Sequence[Any]) -> tuple[list[Folder], list[Stored]]:
    """Returns the runs of results, and the sweeps that they are from.

    Trials of these sweeps that other shards compute, and have not finished, are among the runs.
    """
    read, sweeps, outs = [], {}, {}
    for number, each in enumerate(results, 1):
        result = each
        if isinstance(each, History):
            assert each.config is not None, "histories have settings"
            custom, names = (each.summary.get(key, {}) for key in ("custom", "names"))
            result = SweepResult(Trial(f"result {number}", {}, each.config, custom, names), each)
        if not isinstance(result, SweepResult):
            raise UsageError(
                f"compare takes results of run_sweep, histories, or folders; got {results!r:.99}"
            )
        read.append(read_result(result))
        if result.sweep:
            sweeps[id(result.sweep)] = result.sweep
            if isinstance(result.result, History) and result.result.folder:
                outs[result.result.folder.parents[1]] = result.sweep
    for out, sweep in outs.items():
        for trial in sweep_folder.pending(out, [*sweep.trials.values()]):
            other = read_trial(out, trial)
            if other.kind == "missing":
                read.append(other)
    return read, [*sweeps.values()]
