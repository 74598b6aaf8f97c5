"""`python -m fedvg_jax.verify RUN [RUN ...]`: checks that the files of run folders are as their runs wrote them.

Compares the files of each folder with the digests in the seals of its checkpoints, in manifest.json and in
summary.json, which have digests of themselves. Prints a line for everything that does not fit.

Exit code 0 if all fits, 1 if not, 2 for a usage error, such as a folder that is not a run folder.

It detects accidental changes, not tampering: flipped bits, cut or exchanged files, an edited accuracy.
Nothing is trained again, and the data are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config.command_line import parse_runs
from fedvg_jax.runs.record import verification

PROG = verification.COMMAND


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0 if all folders fit, 1 if not, 2 for a usage error."""
    return commands.guarded(lambda: verify(parse_runs(argv, PROG, __doc__)))


def verify(runs: Sequence[Path]) -> int:
    """Checks run folders, prints a line for each finding, and returns the exit code: 1 if something does not fit."""
    findings = {run: verification.check(run) for run in runs}
    for run, found in findings.items():
        for line in found.misfits:
            print(f"{run}: {line}")
        for line in found.notes:
            print(f"{run}: note: {line}")
        if not found.misfits:
            print(f"{run}: all fits")
    return int(any(found.misfits for found in findings.values()))


if __name__ == "__main__":
    run_and_exit(main)
