"""Errors in a user's own algorithm are reported in one line that names the function, before anything is compiled."""

import jax
import jax.numpy as jnp
import linear
import pytest
import worlds
from files import usage_error

from fedvg_jax import algorithms
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import contracts, simulation

WORLD = worlds.small()
AVERAGE = worlds.algorithm("fedavg")


def sums(hyper, server, params, cohort):
    return jax.tree.map(lambda u: u.sum(), cohort.update), server


MISTAKES = {
    "a sum per leaf": ({"residual": sums}, "algorithm.residual: R leaf 'bn1/bias' has shape (); expected (5,), as the"),
    "no gradients": ({"correct": lambda *_: None}, "algorithm.correct: gradients has no leaf 'bn1/bias'"),
    "a pair": (
        {"report": lambda *_: ((), ())},
        "algorithm.report returned a tuple of 2; expected (the client's memory",
    ),
    "another memory": (
        {"report": lambda *_: (jnp.ones(2), (), ())},
        "algorithm.report: memory has a leaf '' that algorithm.init's memory of a client has not",
    ),
    "an average of integers": (
        {"report": lambda h, p, a, d: (a.client, (), jax.tree.map(lambda leaf: jnp.int32(1), p))},
        "algorithm.report: the message to be averaged leaf 'bn1/bias' is int32 of shape (); expected floats of shape",
    ),
    "a word as memory": ({"init": lambda hyper, params: ((), "none")}, "algorithm.init failed: TypeError"),
    "undeclared": (
        {"residual": lambda hyper, server, params, cohort: (hyper["tempo"], server)},
        "algorithm.residual failed: there is no 'tempo'; hyper has ",
    ),
    "three arguments": (
        {"residual": lambda hyper, server, cohort: ((), server)},
        "algorithm.residual takes (hyper, server, cohort); it is called with (hyper, server, params, cohort)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_in_an_algorithm_is_reported(mistake):
    changes, message = MISTAKES[mistake]
    with usage_error(message):
        contracts.check_algorithm(
            AVERAGE._replace(**changes), worlds.TASK, WORLD.data().pool, worlds.hyper(), num_clients=7
        )


@pytest.mark.parametrize("name", ["fedadam", "scaffold", "feddyn", "elastic"])
def test_algorithms_of_the_package_with_memories_messages_and_probes_pass(name):
    algorithm = algorithms.elastic(official=True) if name == "elastic" else worlds.algorithm(name)
    contracts.check_algorithm(
        algorithm, worlds.TASK, WORLD.data().pool, worlds.hyper(), num_clients=7, stats_too=name == "elastic"
    )


def test_algorithm_is_checked_on_what_server_stats_hands_to_it():
    """This one reads a parameter by name, which running statistics beside the parameters hide."""
    algorithm = AVERAGE._replace(residual=lambda hyper, server, params, cohort: ({"w": 0 * params["w"]}, server))
    own = {"data": linear.data(), "task": linear.TASK, "algorithm": algorithm}
    simulation.simulation(Config(clients=4), **own)
    with pytest.raises(UsageError, match=r"algorithm\.residual"):
        simulation.simulation(Config(clients=4, server_stats="official"), **own)
