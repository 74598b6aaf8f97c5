"""`python -m fedvg_jax.report DIR [DIR ...]`, or `fedvg report`: tables and figures of finished runs.

DIR is the folder of a sweep, of a run, or of several runs. Runs are grouped by method, by the settings that vary, and
by seed; methods are compared seed by seed. Nothing is trained.

Exit code 0, or 2 for an error, described in one line: runs that are missing, or settings that cannot be compared.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config.command_line import FoldersParser, parse_path

PROG = "python -m fedvg_jax.report"


def main(argv: Sequence[str]) -> int:
    """Writes the report that the command line asks for; returns the exit code.

    Args:
        argv: the arguments.
    """
    return commands.guarded(lambda: write(argv))


def _parser() -> argparse.ArgumentParser:
    options = " [--out DIR] [--baseline METHOD] [--partial]"
    parser = FoldersParser(PROG, __doc__, "DIR", "folder of a sweep, of a run, or of runs", options)
    parser.add_argument(
        "--out", type=parse_path, metavar="DIR", help="folder to write; default: report in the first DIR"
    )
    parser.add_argument("--baseline", metavar="METHOD", help="method to compare with; default: fedavg")
    parser.add_argument(
        "--target", type=_number, metavar="ACCURACY", help="accuracy in (0, 1]; default: the baseline's final mean"
    )
    parser.add_argument(
        "--choice",
        default="final",
        metavar="final|at_best_val|max",
        help="evaluation that stands for a run in the tables of accuracy and effects; default: final. max is chosen"
        " on the test set, as the published code does",
    )
    parser.add_argument("--partial", action="store_true", help="report what is finished, and mark the cells")
    parser.add_argument("--style", default="wide", metavar="wide|paper", help="paper: figures one column wide")
    parser.add_argument("--figures", nargs="*", metavar="NAME", help="figures to draw; default: all; no NAME: none")
    return parser


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an accuracy in (0, 1], such as 0.9; got {text[:50]!r}") from None


def write(argv: Sequence[str]) -> int:
    """Writes a report and prints its paths; returns the exit code.

    Raises:
        UsageError: as `fedvg_jax.study.report.write`.
    """
    arguments = _parser().parse_args(argv)
    from fedvg_jax.study import report

    written = report.write(**vars(arguments), command=shlex.join([*PROG.split(), *argv]))
    for path in written.paths:
        print(path)
    for name, reason in written.left_out.items():
        print(f"no figure {name}: {reason}")
    print(*written.findings, sep="\n")
    return 0


if __name__ == "__main__":
    run_and_exit(main)
