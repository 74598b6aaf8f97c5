"""`python -m fedvg_jax.verify RUN [RUN ...]`: checks that the files of run folders are as their runs wrote them.

Compares the files of each folder with the digests in the seals of its checkpoints, in manifest.json and in
summary.json, which have digests of themselves. Prints a line for everything that does not fit.

Exit code 0 if all fits, 1 if not, 2 for a usage error, such as a folder that is not a run folder.

It detects accidents and careless edits: flipped bits, cut or exchanged files, an edited accuracy. It does not detect a
forger who also rewrites every digest: no key is involved. Nothing is trained again, and the data are not read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config.command_line import parse_runs
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record import verification
from fedvg_jax.views import output

PROG = verification.COMMAND


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if all folders fit, 1 if not, 2 for a usage error."""
    words = list(sys.argv[1:] if argv is None else argv)
    with output.lasting():
        try:
            reports = {run: verification.check(run) for run in parse_runs(words, PROG, __doc__)}
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        for run, report in reports.items():
            show(run, report)
    return int(any(report.misfits for report in reports.values()))


def show(run: Path, report: verification.Findings) -> None:
    """Prints a report, a line for each finding."""
    for line in report.misfits:
        print(f"{run}: {line}")
    for line in report.notes:
        print(f"{run}: note: {line}")
    if not report.misfits:
        print(f"{run}: all fits")


if __name__ == "__main__":
    run_and_exit(main)
