"""What a call is given is traced by that call: a value that its functions read is the present one."""

import dataclasses
import gc
import weakref

import flax.linen as nn
import jax
import numpy as np
import pytest
from support import linear

import fedvg_jax as fv
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs.assemble import tables
from fedvg_jax.weightings import basic

RATE = 0.5
SETTINGS_OF_RUN = fv.Config(clients=2, partition="iid", local_epochs=1, lanes="1", devices="1")


GIVEN = {"data": linear.data(), "weighting": basic.uniform()}


def rated_loss(*batch):
    loss, stats = linear.TASK.loss(*batch)
    return loss * RATE, stats


def rated(hyper, grads, params, anchor):
    return jax.tree.map(lambda leaf: leaf * RATE, grads)


def rated_weighting(task=None):
    return basic.uniform()._replace(score=lambda signals: signals * RATE)


OWN = {
    "task": {"task": linear.TASK._replace(loss=rated_loss)},
    "jitted task": {"task": linear.TASK._replace(loss=jax.jit(rated_loss, static_argnums=4))},
    "algorithm": {"algorithm": fv.algorithms.fedavg()._replace(correct=rated)},
    "weighting": {"weighting": rated_weighting()},
    "function that makes a weighting": {"weighting": rated_weighting},
}


@pytest.mark.parametrize("kind", OWN)
def test_whatever_a_call_is_given_is_traced_by_that_call(kind, monkeypatch):
    def program(rate: float) -> str:
        monkeypatch.setitem(globals(), "RATE", rate)
        sim = fv.simulation(SETTINGS_OF_RUN, **GIVEN | {"task": linear.TASK} | OWN[kind])
        rounds = schedules.stack([sim.schedule(0)], tables.MAX_ROUNDS)
        return str(sim.chunk.trace(sim.state, np.int32(1), rounds, sim.data, sim.hyper).jaxpr)

    assert program(0.5) == program(0.5) != program(0.75)


class Double(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, param_dtype=np.float64)(x)[:, 0]


def test_a_model_of_double_precision_runs_without_warnings(x64, recwarn):
    x, y = (array.astype(float) for array in linear.data())
    task = fv.linen_task(Double(), lambda output, y: (output - y) ** 2, x[:1])
    config = dataclasses.replace(SETTINGS_OF_RUN, rounds=1, weighting="fedvg")
    with jax.numpy_dtype_promotion("standard"):
        model = fv.run(config, data=(x, y), task=task).variables
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {np.dtype(float)}
    assert not recwarn.list


def test_no_program_of_a_caller_s_functions_outlives_the_call():
    task = linear.TASK._replace(loss=lambda *batch: rated_loss(*batch)[:2])
    loss = weakref.ref(task.loss)
    fv.run(dataclasses.replace(SETTINGS_OF_RUN, rounds=1), task=task, **GIVEN)
    del task
    gc.collect()
    assert loss() is None
