"""`fedvg COMMAND`, or `python -m fedvg_jax COMMAND`: the commands of this package as subcommands."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from collections.abc import Callable, Sequence

COMMANDS = {
    "sim": "train one federated model",
    "sweep": "train a model for every combination of settings",
    "prepare": "read, check, cache and draw a data set",
    "report": "compare finished runs in tables and figures, or verify and draw one",
}
"""Module with a `main` -> what it does."""


def main(argv: Sequence[str]) -> int:
    """Runs a subcommand and returns its exit code; 2 for an unknown one.

    Args:
        argv: the name of the command and its arguments.
    """
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        listed = "\n".join(f"  {command:8} {purpose}" for command, purpose in COMMANDS.items())
        print(
            f"usage: fedvg COMMAND [OPTIONS]\n\nCommands:\n{listed}\n\nOptions of a command: fedvg COMMAND --help"
        )
        return 0
    if name not in COMMANDS:
        from fedvg_jax.config.declare import suggestion

        print(f"error: unknown command '{name[:100]}'{suggestion(name, COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"fedvg_jax.{name}").main(rest)


def run_and_exit(command: Callable[[Sequence[str]], int] = main) -> None:
    """Runs the command line of the process and exits with its code: the console script `fedvg`.

    Args:
        command: the `main` of a command.
    """
    # Python's own handler would wait for the end of compiling
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fedvg_jax.views import output

    with output.lasting():  # help, too, as in `... --help | head`
        code = command(sys.argv[1:])
    gc.freeze()  # else the interpreter searches everything that was traced for cycles at exit: half a second
    sys.exit(code)


if __name__ == "__main__":
    run_and_exit()
