"""An algorithm or a weighting with options is one entry of a registry."""

import inspect
import json
import subprocess
import sys

import pytest

from fedvg_jax import config
from fedvg_jax.weightings.fedvg import norm_parts

ADDED = """
import sys

import jax

from fedvg_jax import algorithms, weightings
from fedvg_jax.core.types import NamedAlgorithm, NamedWeighting, Option, Range


def still(moves="yes"):
    def residual(hyper, server, params, cohort):
        return jax.tree.map(lambda u: u if moves == "no" else 0 * u, cohort.update), server

    return algorithms.fedavg()._replace(residual=residual)


def numbered(task, power=0):
    return weightings.by_scalar(lambda hyper, client, data: (1 + client.id.astype(float)) ** power)


MOVES = Option("still.moves", "yes", ("yes", "no"), "Whether the model moves.")
POWER = Option("numbered.power", 0, Range(0), "Power of a client's number.")
algorithms.BY_NAME["still"] = NamedAlgorithm("Still", still, options=(MOVES,))
weightings.BY_NAME["numbered"] = NamedWeighting(numbered, options=(POWER,))

from fedvg_jax import sim

sys.exit(sim.main(sys.argv[1:]))
"""


def test_options_of_an_added_algorithm_and_weighting_are_flags_that_reach_their_factories(tmp_path):
    out = tmp_path / "run"
    flags = "--model linear --rounds 2 --eval-every 1 --clients 4 --join-ratio 0.5 --alpha 10"
    own = "--method still+numbered --still.moves no --numbered.power 1"
    done = subprocess.run(
        [sys.executable, "-c", ADDED, *flags.split(), *own.split(), "--out", str(out)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert len({record["test_loss"] for record in records}) == 1  # the model does not move
    for record in records:
        numbers = [1 + client for client in record["clients"]]
        assert record["weights"] == pytest.approx([n / sum(numbers) for n in numbers])


ENTRIES = {**config.ALGORITHMS, **config.WEIGHTINGS}


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.options])
def test_the_default_of_an_option_is_that_of_the_factory_s_argument(name):
    entry = ENTRIES[name]
    parameters = inspect.signature(entry.make).parameters
    if "options" in parameters:  # of every weighting of norms
        parameters = inspect.signature(norm_parts).parameters | parameters
    for option in entry.options:
        assert parameters[option.name.partition(".")[2]].default == option.value
