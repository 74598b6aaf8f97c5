"""A mistake on a command line is one line and exit code 2."""

import importlib.util
import shlex

import pytest

from fedvg_jax import __main__ as fedvg
from fedvg_jax import bounds, plots, prepare, sim, verify

NEEDS_MATPLOTLIB = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="pictures need the plot extra"
)
MISTAKES = [
    (fedvg, "smi", "did you mean 'sim'"),
    (fedvg, "sim --alpha 0", "alpha must be > 0"),
    (sim, "--alpha 0", "alpha must be > 0"),
    (sim, "--alpha 0.05 0.5", "a flag takes one value here; python -m fedvg_jax.sweep takes several"),
    (sim, "--method fedvgg", "did you mean 'fedvg'"),
    (sim, "--method uniform+fedvg+samples", "unknown method 'uniform+fedvg+samples'"),
    (sim, "--method fedavg,fedprox", "several values are for python -m fedvg_jax.sweep, separated by spaces: fedavg"),
    (sim, "--method", "--method needs a name"),
    (sim, "--weighting fedavg", "the weights of FedAvg and FedSGD, n_k / sum_j n_j, are called samples"),
    (sim, "--weighting scaffold", "use --method scaffold, or --algorithm scaffold --weighting native"),
    (sim, "--method fedsgd", "--method fedavg --local-epochs 1, and a --batch-size of all rows"),
    (sim, "--seed 0-3", "a range is for seeds of python -m fedvg_jax.sweep, without its end: 0:3"),
    (sim, "--fidelity offical", "did you mean 'official'"),
    (sim, "--resume /no/such", "/no/such is not a run folder"),
    (sim, "--export /no/such/m.safetensors", "export /no/such/m.safetensors: no such folder"),
    (sim, "--export m.pt", "export must end in .safetensors; got m.pt"),
    (sim, "--lr inf", "lr must be a finite number > 0; got inf"),
    (sim, "--val-ratio 1e-9 --holdout global --clients 1", "use a larger ratio\n"),
    (sim, "--dataset cifar10 --data-dir /no/such", "cs.toronto.edu"),
    (sim, "--clients 2000", "fewer clients"),
    (sim, "--val-ratio 0.001", "validation"),
    (sim, "--model lenet5", "--model tinycnn"),
    (sim, "--out /proc/no/such", "--out"),
    (sim, "--fedprox.mu 0.01", "--fedprox.mu is not used by --algorithm fedavg; it is used by fedprox"),
    (prepare, "", "needs a data set first"),
    (prepare, "cifar10", "needs --data-dir DIR"),
    (prepare, "cifar10 --data-dir /no/such", "cs.toronto.edu"),
    (prepare, "digits --splits official", "--splits is not used by --dataset digits; it is used by dermamnist"),
    (prepare, "cifar10 --download --data-dir x", "got cifar10: fetch other files yourself"),
    pytest.param(prepare, "digits --out /proc/no/such", "--out", marks=NEEDS_MATPLOTLIB),
    (prepare, "digits --lr 0.1", "--lr is not an option of prepare"),
    (prepare, "digits --best-on held_out", "--best-on is not an option of prepare"),
    (prepare, "digits --corrupt.kind=label_flip", "--corrupt.kind is not an option of prepare"),
    (bounds, "--dry-run", "--dry-run is not an option of bounds"),
    (bounds, "--track tensorboard", "--track is not an option of bounds"),
    (bounds, "--resume auto", "--resume is not an option of bounds"),
    (bounds, "--placement host", "--placement is not an option of bounds"),
    (plots, "", "arguments are required: RUN"),
    (plots, "/no/such", "not a run folder"),
    (plots, "RUN --all", "unrecognized arguments"),
    (verify, "", "arguments are required: RUN"),
    (verify, "''", "argument RUN: must not be empty"),
    (verify, "/no/such", "name the folder of a run"),
    (verify, "a" * 300, "name the folder of a run"),
]


@pytest.mark.parametrize(("command", "words", "message"), MISTAKES, ids=lambda part: getattr(part, "__name__", part))
def test_mistake_is_one_line_and_exit_code_two(capfd, command, words, message):
    assert command.main(shlex.split(words)) == 2
    output, errors = capfd.readouterr()
    assert errors.startswith("error: ") and message in errors and errors.count("\n") == 1
    assert not output or "--out" in words, "only a folder that cannot be written is noticed later"
