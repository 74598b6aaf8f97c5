"""`python -m fedvg_jax.report DIR [DIR ...]`, or `fedvg report`: tables and figures of finished runs.

DIR is the folder of a sweep or of several runs. Runs are grouped by method, by the settings that vary, and by seed;
methods are compared seed by seed. Nothing is trained.

`report RUN`, with the folder of one run and no option, draws curves.png and weights.png into RUN. A run that is still
going may be drawn, too.

Exit code 0, or 2 for an error, described in one line: runs that are missing, or settings that cannot be compared.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # ends the process amid its imports, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import shlex
from collections.abc import Sequence

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import command_line
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History

PROG = "python -m fedvg_jax.report"


def main(argv: Sequence[str]) -> int:
    """Writes the report that the command line asks for; returns the exit code.

    Args:
        argv: the arguments.
    """
    return commands.guarded(lambda: write(argv))


def make_parser() -> command_line.Parser:
    """Returns the parser of the command line."""
    parser = command_line.Parser(f"{PROG} DIR [DIR ...]", description=__doc__)
    add = parser.add_argument
    add(
        "dirs",
        metavar="DIR",
        nargs="+",
        type=files.user_path,
        help="folder of a sweep, of a run, or of runs",
    )
    add(
        "--out",
        type=files.user_path,
        metavar="DIR",
        help="folder to write; default: report in the first DIR",
    )
    add(
        "--baseline",
        metavar="METHOD",
        help="method to compare with, or all: every pair; default: fedavg",
    )
    add(
        "--metric",
        metavar="NAME",
        help="outcome to compare: accuracy, loss, macro_f1, a custom metric, personal_accuracy_mean, worst_decile,"
        " ...; min:NAME or max:NAME says that lower or higher values of a custom one are better; default: accuracy, of"
        " the clients' own models if methods have such models and all runs record it",
    )
    add(
        "--target",
        type=float,
        metavar="ACCURACY",
        help="accuracy in (0, 1], or loss, that runs are to reach, for the metrics rounds_to_target and"
        " time_to_target; the latter are virtual seconds of a clock",
    )
    add(
        "--choice",
        metavar="final|at_best_val|max",
        help="evaluation that stands for a run in the tables of accuracy and effects; default: final. max is chosen on"
        " the test set, as the published code does",
    )
    add("--partial", action="store_true", help="report what is finished, and mark the conditions")
    add("-h", "--help", action="help", help="show this help")
    return parser


def write(argv: Sequence[str]) -> int:
    """Writes a report, prints its page and its findings, and returns the exit code.

    Raises:
        UsageError: as `fedvg_jax.study.report.write`.
    """
    arguments = make_parser().parse_args(argv)
    folder = arguments.dirs[0]
    if len(argv) == 1 and run_folder.is_run(folder):
        for path in commands.draw_run(History.load(folder), print):
            print(path)
        return 0
    from fedvg_jax.study import report

    options = {"out": folder / "report", **vars(arguments)}
    command = shlex.join([*PROG.split(), *argv])
    written = report.write(options.pop("dirs"), command, **options)
    print(*written.ending, sep="\n")
    return 0


if __name__ == "__main__":
    run_and_exit(main)
