"""What a call is given is traced by that call: a value that its functions read is the present one."""

import dataclasses
import gc
import os
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear

import fedvg_jax as fv
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs.assemble import tables
from fedvg_jax.weightings import basic

RATE = 0.5
SETTINGS_OF_RUN = fv.Config(clients=2, partition="iid", local_epochs=1, lanes="1", devices="1")


class Scale:
    """An object whose value is an attribute."""

    def __init__(self):
        self.rate = 0.5

    def __call__(self):
        return self.rate


def with_default(rate=0.5):
    return rate


def of_closure():
    rate = 0.5

    def change(value):
        nonlocal rate
        rate = value

    return (lambda: rate), change


WAYS = {
    "global": (None, lambda _: RATE, lambda _, value: globals().update(RATE=value)),
    "closure": (of_closure(), lambda pair: pair[0](), lambda pair, value: pair[1](value)),
    "default argument": (with_default, lambda f: f(), lambda f, value: setattr(f, "__defaults__", (value,))),
    "object that is called": (Scale(), lambda held: held(), lambda held, value: setattr(held, "rate", value)),
    "array": (np.array([0.5]), lambda held: float(held[0]), lambda held, value: held.fill(value)),
    "environment": (os.environ, lambda held: float(held.get("OWN", "0.5")), lambda h, value: h.update(OWN=str(value))),
}
"""Where a value of 0.5 is -> an object, a function that reads the value from it, and one that changes it there."""


def values() -> np.ndarray:
    return np.array([read(held) for held, read, _ in WAYS.values()], np.float32)


def loss(params, stats, batch, mask, train):
    return params["w"] @ values() * mask.max().astype(jnp.float32), stats


TASK = linear.TASK._replace(
    init=lambda key: fv.Variables({"w": jnp.zeros(len(WAYS))}, {}),
    loss=loss,
    predict=lambda params, stats, batch: None,
    measure=lambda params, stats, batch, mask: {"loss": jnp.where(mask, params["w"][0], 0).sum()},
)
"""A task whose gradient has the values of all ways."""

GIVEN = {"data": linear.data(), "weighting": basic.uniform()}


def gradient(task) -> np.ndarray:
    """The gradient of the loss in a run's program."""
    sim = fv.simulation(SETTINGS_OF_RUN, task=task, **GIVEN)
    batch, mask = fv.Batch(*(array[:2] for array in linear.data())), jnp.ones(2, bool)
    return jax.grad(lambda params: sim.task.loss(params, {}, batch, mask, True)[0])(sim.state.variables.params)["w"]


@pytest.fixture(scope="module")
def first():
    gradient(TASK)


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("way", WAYS)
def test_a_changed_value_is_read_by_the_next_run(way):
    held, read, change = WAYS[way]
    change(held, 0.25)
    assert read(held) == 0.25
    np.testing.assert_array_equal(gradient(TASK), values())


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


def test_no_program_of_a_caller_s_functions_outlives_the_call():
    task = linear.TASK._replace(loss=lambda *batch: rated_loss(*batch)[:2])
    loss = weakref.ref(task.loss)
    fv.run(dataclasses.replace(SETTINGS_OF_RUN, rounds=1), task=task, **GIVEN)
    del task
    gc.collect()
    assert loss() is None
