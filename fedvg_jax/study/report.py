"""Reports: run folders -> a study -> tables, figures and a page."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import page, tables
from fedvg_jax.study.cells import CHOICES, Choice, Study
from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import FIGURES, STEMS, Figure, base
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.markup import FORMATS, Table

PAGE = "report.html"
EXTRA = ("scipy", "matplotlib")
"""Modules of the packages of the extra `report`."""


class Written(NamedTuple):
    """What was written."""

    study: Study
    tables: list[Table]
    paths: list[Path]
    """All files, in the order in which they were written."""
    left_out: dict[str, str]
    """Figure -> why it is not drawn."""


def write(
    dirs: Sequence[Path | str],
    out: Path | str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    partial: bool = False,
    style: str = "wide",
    figures: Sequence[str] | None = None,
    choice: str = "final",
    command: str = "",
) -> Written:
    """Writes the tables, the figures and the page of run folders.

    The same runs give the same bytes, except for the seconds in the tables of costs and of runs. Tables and figures
    that an earlier report has left in the folder and this one does not write are removed.

    Args:
        dirs: sweep folders, run folders, or folders of these.
        out: folder of the report; None for `report` in the first of `dirs`.
        baseline: method that the others are compared with; None for fedavg.
        target: accuracy from 0 to 1, or loss, for "rounds to the target"; None for the baseline's final mean.
        partial: report the runs that are finished, and mark cells that lack some.
        style: "wide", or "paper" for one column.
        figures: names of `FIGURES`; None for all that the runs have values for.
        choice: the evaluation that stands for a run in the tables of accuracy and effects: final, at_best_val or max.
        command: that writes this report, for the page; empty for the plain one.

    Raises:
        UsageError: the runs cannot be compared, some are missing, an option is unknown, or a package is missing.
    """
    if not dirs:
        raise UsageError("name the folder of a sweep or of runs")
    named = [
        (style, base.STYLES, "style"),
        (choice, CHOICES, "choice"),
        *((f, FIGURES, "figure") for f in figures or ()),
    ]
    for value, allowed, what in named:
        if value not in allowed:
            raise UsageError(f"unknown {what} '{value[:100]}'{suggestion(value, allowed)}")
    if missing := missing_packages():
        raise UsageError(f"reports need {', '.join(missing)}; pip install 'fedvg_jax[report]'")
    names = FIGURES if figures is None else figures
    study = collect(dirs, partial)
    made = tables.all_tables(study, tables.options(study, baseline, target, cast("Choice", choice)))
    folder = Path(out) if out else Path(dirs[0]) / "report"
    with files.writing(folder, "--out"):
        paths = [path for table in made for path in write_table(table, folder / "tables")]
        paths += write_table(tables.runs(study), folder / "tables", ("csv",))
        drawn, left_out = write_figures(
            study, folder / "figures", base.STYLES[style], {name: FIGURES[name] for name in names}
        )
        paths += [path for _, several in drawn for path in several]
        pictures = [(drawing, several[0]) for drawing, several in drawn]
        text = page.page(study, made, pictures, left_out, command or _command(dirs))
        files.replace(folder / PAGE, text)
        _remove_stale(folder, paths)
    return Written(study, made, [*paths, folder / PAGE], left_out)


def missing_packages() -> list[str]:
    """Returns the modules that a report needs and that are not installed."""
    return [name for name in EXTRA if importlib.util.find_spec(name) is None]


def _command(dirs: Sequence[Path | str]) -> str:
    """Returns a command line that writes the report of these folders."""
    return " ".join(["python -m fedvg_jax.report", *(shlex.quote(str(path)) for path in dirs)])


def write_table(table: Table, folder: Path, suffixes: Sequence[str] = tuple(FORMATS)) -> list[Path]:
    """Writes a table in every format, or in some; returns its files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{table.name}.{suffix}" for suffix in suffixes]
    for path, suffix in zip(paths, suffixes, strict=True):
        files.replace(path, FORMATS[suffix](table))
    return paths


def _remove_stale(folder: Path, written: Sequence[Path]) -> None:
    """Removes tables and figures that an earlier report has written to a folder and this one has not.

    Args:
        folder: of the report.
        written: the files of this report's tables and figures.
    """
    figures = rf"figures/({'|'.join(STEMS)})(-([2-9]|[1-9]\d+))?\.(png|pdf|csv)"
    own = rf"{figures}|tables/({'|'.join(tables.NAMES)})\.({'|'.join(FORMATS)})"
    for path in folder.glob("*/*"):
        if path not in written and re.fullmatch(own, path.relative_to(folder).as_posix()) and not path.is_dir():
            path.unlink()


def write_figures(
    study: Study, folder: Path, style: base.Style, figures: Mapping[str, Figure]
) -> tuple[list[tuple[Drawing, list[Path]]], dict[str, str]]:
    """Draws figures; returns them with their files, and why others are left out."""
    written, left_out = [], {}
    with base.drawing(style):
        for name, draw in figures.items():
            drawn = draw(study, style)
            if isinstance(drawn, str):
                left_out[name] = drawn
            else:
                written += [(drawing, base.save(drawing, folder, style)) for drawing in drawn]
    return written, left_out
