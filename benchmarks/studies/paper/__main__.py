"""Judges the paper's claims by finished runs, and draws the figures that the claims are about.

    python -m benchmarks.studies.paper DIR [DIR ...] --out FOLDER [--style paper] [--figures NAME ...]

Each DIR is a study of its own, which may be incomplete: the folder of a sweep, of a run, or of runs. FOLDER gets
claims.csv and claims.md. For every DIR it gets a folder of its name with the figures and, where the paper has such
runs, its values beside ours. Needs the report extra. Exit code 2 after an error, one line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.studies.paper import claims, measures, values
from benchmarks.studies.paper.figures import FIGURES
from fedvg_jax import commands
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.study import markup, report
from fedvg_jax.study.cells import Study
from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import base


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, writes the folder and returns the exit code."""
    parser = machine.parser(__doc__)
    parser.add_argument("dirs", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--style", choices=tuple(base.STYLES), default="wide")
    parser.add_argument("--figures", nargs="*", choices=tuple(FIGURES), default=tuple(FIGURES), metavar="NAME")
    args = parser.parse_args(argv)
    return commands.guarded(lambda: write(args.dirs, args.out, args.figures, args.style))


def write(dirs: Sequence[Path], out: Path, figures: Sequence[str] = tuple(FIGURES), style: str = "wide") -> int:
    """Writes claims, values and figures; prints the verdicts, what is left out, and the paths.

    Raises:
        UsageError: a folder holds no finished run, or the output cannot be written.
    """
    names = [folder.resolve().name for folder in dirs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two folders are called {twice}, and each gets a folder of its name; name them one at a time")
    studies = {folder: collect([folder], partial=True) for folder in dirs}
    results = [result for study in studies.values() for result in claims.results_of_study(study)]
    with files.writing(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        files.replace(out / "claims.csv", claims.as_csv(results))
        files.replace(out / "claims.md", _page(results))
        for claim, mine in claims.by_claim(results).items():
            print(f"{claims.verdict(mine)}: {claim.statement}")
        paths = [out / "claims.csv", out / "claims.md"]
        for folder, study in studies.items():
            paths += _write_study(study, out / folder.resolve().name, figures, style)
    for path in paths:
        print(path)
    return 0


def _write_study(study: Study, folder: Path, figures: Sequence[str], style: str) -> list[Path]:
    """Writes the paper's values and the figures of one study; returns their paths."""
    for line in measures.ambiguities(study):
        print(f"left out: {line}")
    beside = values.against_paper(study)
    paths = report.write_table(beside, folder) if beside else []
    drawn, left_out = report.write_figures(study, folder, base.STYLES[style], {name: FIGURES[name] for name in figures})
    for name, reason in left_out.items():
        print(f"no figure {name}: {reason}")
    return paths + [path for _, several in drawn for path in several]


def _page(results: Sequence[claims.Result]) -> str:
    """Returns the claims with their verdicts and the numbers behind them, in Markdown."""
    parts = ["# The paper's claims", "", markup.markdown(claims.table(results))]
    for statement, lines in claims.details(results):
        parts += [f"## {markup.plain_markdown(statement)}", "", *(f"- {markup.plain_markdown(x)}" for x in lines), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
