"""Judges the paper's claims by finished runs, and sets our values beside the paper's.

    python -m benchmarks.studies.paper DIR [DIR ...] --out FOLDER

Each DIR is a separate study, which may be incomplete: the folder of a sweep, of a run, or of runs. FOLDER gets
claims.csv and claims.md. Needs the report extra. Exit code 2 after an error, one line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks import machine
from benchmarks.pages.markdown import escape, table
from benchmarks.studies.paper import claims, measures, values
from fedvg_jax import commands
from fedvg_jax.host import files
from fedvg_jax.study.collect import collect
from fedvg_jax.study.groups import Study


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, writes the folder and returns the exit code."""
    parser = machine.parser(__doc__)
    parser.add_argument("dirs", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args(argv)
    return commands.guarded(lambda: write(args.dirs, args.out))


def write(dirs: Sequence[Path], out: Path) -> int:
    """Writes claims and values; prints the verdicts, and what is left out.

    Raises:
        UsageError: a folder holds no finished run, or the output cannot be written.
    """
    studies = [collect([folder], partial=True) for folder in dirs]
    results = [result for study in studies for result in claims.results_of_study(study)]
    with files.writing(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        files.replace(out / "claims.csv", claims.as_csv(results))
        files.replace(out / "claims.md", _page(results, studies))
    for claim, mine in claims.by_claim(results).items():
        print(f"{claims.verdict(mine)}: {claim.statement}")
    for line in (line for study in studies for line in measures.ambiguities(study)):
        print(f"left out: {line}")
    print(out / "claims.md")
    return 0


def _page(results: Sequence[claims.Result], studies: Sequence[Study]) -> str:
    """Returns the claims with their verdicts and the numbers behind them, and our values, in Markdown."""
    parts = ["# The paper's claims", "", _markdown(claims.table(results))]
    for statement, lines in claims.details(results):
        parts += [f"## {escape(statement)}", "", *(f"- {escape(line)}" for line in lines), ""]
    for study in studies:
        found = values.against_paper(study)
        parts += [] if found.empty else [f"**{escape(study.title)}**\n", NOTE, _markdown(found)]
    return "\n".join(parts)


NOTE = (
    "Test accuracy in percent, beside the paper's over five seeds, which are maxima over evaluations on the test set."
    " Runs may be of a smaller scale than the paper's; config.json of a run has its settings.\n"
)


def _markdown(shown: pd.DataFrame) -> str:
    """Returns a table of texts in Markdown."""
    return table([*map(escape, shown)], shown.map(escape).to_numpy().tolist())


if __name__ == "__main__":
    sys.exit(main())
