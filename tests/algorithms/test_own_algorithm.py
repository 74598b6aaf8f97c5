"""An algorithm in a user's file: FedExP with a hyperparameter of its own."""

import jax
import jax.numpy as jnp
import optax
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax.algorithms import no_correction, no_memory, no_probe
from fedvg_jax.core.types import Algorithm, Cohort, Hyperparameter
from fedvg_jax.runs.assemble import simulation


def fedexp():
    """FedExP, Eq. (5) of Jhunjhunwala et al., ICLR 2023: eta_g = max(1, mean ||delta_k||^2 / (2 (||u||^2 + eps)))."""

    def report(hyper, params, anchor, displacement):
        squares = jax.tree.map(lambda start, end: jnp.sum((start - end) ** 2), anchor.params, params)
        return anchor.client, (), squares

    def residual(hyper, server, params, cohort):
        squared = sum(jax.tree.leaves(cohort.averaged))
        rate = jnp.maximum(1, squared / (2 * (optax.tree.norm(cohort.update) ** 2 + hyper["eps"])))
        return jax.tree.map(lambda u: (1 - rate) * u, cohort.update), server

    eps = Hyperparameter("eps", 1e-3, low=0.0, doc="added to the squared norm of the mean update")
    return Algorithm(no_memory, no_correction, report, residual, no_probe, "uniform", (eps,))


FEDEXP = fedexp()


def test_fedexp_takes_the_step_of_its_equation():
    """Updates 3 and -1: u = 1, mean square 5, eta_g = 5 / 2, R = (1 - 5/2) u. With eps 9: eta_g = max(1, 1/4)."""
    cohort = Cohort({"w": jnp.float32(1)}, (), {"w": jnp.float32(5)}, None, (), 2)
    for eps, residual in ((0.0, -1.5), (9.0, 0.0)):
        assert FEDEXP.residual({"eps": jnp.float32(eps)}, (), None, cohort)[0]["w"] == residual


def test_a_run_uses_the_given_value_of_a_declared_hyperparameter():
    config, given = fv.Config(clients=4, rounds=2, weighting="uniform", model="linear", lanes="1"), worlds.images(80)
    small, large = (fv.run(config, data=given, algorithm=FEDEXP, hyper={"eps": e}).records[-1] for e in (1e-6, 1e6))
    assert small["train_loss"] != large["train_loss"]


@pytest.mark.usefixtures("traced")
def test_a_run_gives_probe_minibatches_to_any_algorithm_with_a_probe_and_to_no_other():
    """`elastic` as an object has the schedule of the setting; without probes its sensitivities are all 0."""

    def probe_steps(named, given):
        config = fv.Config(clients=4, rounds=1, local_epochs=1, weighting="uniform", algorithm=named)
        return simulation.simulation(config, data=worlds.images(80), algorithm=given).schedule(0).probe_steps.tolist()

    by_name = probe_steps("elastic", None)
    assert min(by_name) > 0
    assert probe_steps("fedavg", fv.algorithms.elastic()) == by_name
    assert not any(probe_steps("elastic", FEDEXP))
