"""Mistakes on command lines."""

import contextlib
import io
import shlex

from support.run_folders import write_sweep

from fedvg_jax import __main__ as fedvg, prepare, report, sim
from fedvg_jax.core.types import UsageError
from messages import scratch


def command(module, words):
    """Returns the call of a command line, which raises what it prints as an error."""

    def call():
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            code = module.main(shlex.split(words))
        text = errors.getvalue()
        assert code == 2 and text.startswith("error: ") and text.endswith("\n")
        raise UsageError(text[:-1])

    return call


def reported(words):
    """Returns the call of `report` with a finished sweep."""

    def use(folder):
        write_sweep(folder, {"method": ["fedavg", "fedvg"], "seed": [0]}, lambda _: (0.5,))
        command(report, f"{folder} {words}")()

    return scratch(use, "s")


CASES = [
    ("an unknown command", command(fedvg, "smi"), "sim"),
    ("a setting of a subcommand", command(fedvg, "sim --alpha 0"), "alpha"),
    ("several values", command(sim, "--alpha 0.05 0.5"), "fedvg_jax.sweep"),
    ("a folder without a run", command(sim, "--init /"), "/: no such file or run"),
    ("a method that is nearly known", command(sim, "--method fedvgg"), "fedvg"),
    ("a method as weights", command(sim, "--weighting fedavg"), "--method fedavg"),
    ("no run to resume", command(sim, "--resume /no/such"), "/no/such"),
    ("a folder that cannot be made", command(sim, "--out /proc/no/such"), "--out"),
    ("an unused setting", command(sim, "--fedprox.mu 0.01"), "--fedprox.mu"),
    ("no data set", command(prepare, ""), "data set"),
    ("an unused setting of data", command(prepare, "digits --splits official"), "--splits"),
    ("a setting of training", command(prepare, "digits --lr 0.1"), "--lr"),
    ("no folder to report", command(report, ""), "DIR"),
    ("a folder that does not exist", command(report, "nowhere"), "nowhere"),
    ("an unknown baseline", reported("--baseline fedsgd"), "fedsgd"),
    ("a target that is no number", reported("--target high"), "--target"),
    ("a file in place of a folder", reported(f"--out {__file__}"), "--out"),
]
