"""What a call is given is traced by that call: a value that its functions read is the present one."""

import collections
import contextvars
import dataclasses
import enum
import functools
import gc
import os
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from support import linear

import fedvg_jax as fv
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs.assemble import tables
from fedvg_jax.weightings import basic

RATE = 0.5
SETTINGS = types.SimpleNamespace(rate=0.5)
VARIABLE = contextvars.ContextVar("rate", default=0.5)
SETTINGS_OF_RUN = fv.Config(clients=2, partition="iid", local_epochs=1, lanes="1", devices="1")


class Scale:
    factor, factors, array = 0.5, (pd.Series([0.5]), [0.5]), np.array(0.5)

    def __init__(self):
        self.rate = 0.5

    def __call__(self):
        return self.rate

    @property
    def half(self):
        return self.rate

    @classmethod
    def of_class(cls):
        return cls.factor

    @staticmethod
    def fixed():
        return 0.5


class Slots:
    __slots__ = ("rate",)

    def __init__(self):
        self.rate = 0.5


class Bag(dict):
    """As ConfigDict: entries are attributes."""

    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


class Level(enum.Enum):
    LOW = types.SimpleNamespace(rate=0.5)


@dataclasses.dataclass
class Options:
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class Frozen:
    rates: list


def with_default(rate=0.5):
    return rate


def with_keyword(*, rate=0.5):
    return rate


def helper():
    return SETTINGS.rate


def importing():
    import test_own_functions as module

    return module.SETTINGS.rate


def of_closure():
    rate = 0.5

    def change(value):
        nonlocal rate
        rate = value

    return (lambda: rate), change


def put(held, value):
    held[0] = value


def put_rate(held, value):
    held["rate"] = value


def set_rate(held, value):
    held.rate = value


def called(held):
    return held() if callable(held) else held[0]()


DEQUE, FUNCTION, BAG = collections.deque([0.5]), types.FunctionType(helper.__code__, globals()), Bag(rate=0.5)
FUNCTION.rate = 0.5
SCALE = Scale()

WAYS = {
    "global": (None, lambda _: RATE, lambda _, value: globals().update(RATE=value)),
    "closure": (of_closure(), called, lambda pair, value: pair[1](value)),
    "default argument": (with_default, called, lambda f, value: setattr(f, "__defaults__", (value,))),
    "keyword default": (with_keyword, called, lambda f, value: f.__kwdefaults__.update(rate=value)),
    "attribute of a function": (FUNCTION, lambda f: f.rate, set_rate),
    "import inside": (importing, called, lambda _, value: set_rate(SETTINGS, value)),
    "namespace of a helper": (helper, called, lambda _, value: set_rate(SETTINGS, value)),
    "helper by its name": ("helper", lambda name: globals()[name](), lambda _, value: set_rate(SETTINGS, value)),
    "getattr": (Scale(), lambda held: getattr(held, "ra" + "te"), set_rate),
    "class attribute": (Scale, lambda held: held.factor, lambda held, value: setattr(held, "factor", value)),
    "list in a class": (Scale, lambda held: held.factors[1][0], lambda held, value: put(held.factors[1], value)),
    "series in a class": (Scale, lambda held: held.factors[0][0], lambda held, value: put(held.factors[0], value)),
    "array in a class": (Scale, lambda held: float(held.array), lambda held, value: held.array.fill(value)),
    "class method": (Scale.of_class, called, lambda _, value: setattr(Scale, "factor", value)),
    "static method": (Scale, lambda held: held.fixed(), lambda held, value: setattr(held, "fixed", lambda: value)),
    "property": (Scale(), lambda held: held.half, set_rate),
    "bound method": (SCALE.__call__, called, lambda _, value: set_rate(SCALE, value)),
    "object that is called": (Scale(), called, set_rate),
    "slot": (Slots(), lambda held: held.rate, set_rate),
    "partial": (functools.partial(lambda held: held[0], DEQUE), called, lambda _, value: put(DEQUE, value)),
    "partial's keyword": (functools.partial(lambda rate: rate, rate=0.5), called, lambda f, v: put_rate(f.keywords, v)),
    "dict": ({"rate": 0.5}, lambda held: held["rate"], put_rate),
    "ordered dict": (collections.OrderedDict(rate=0.5), lambda held: held["rate"], put_rate),
    "chain map": (collections.ChainMap({"rate": 0.5}), lambda held: held["rate"], put_rate),
    "config dict": (BAG, lambda held: held.rate, set_rate),
    "list": ([0.5], lambda held: held[0], put),
    "list in a tuple": (([0.5],), lambda held: held[0][0], lambda held, value: put(held[0], value)),
    "deque": (collections.deque([0.5]), lambda held: held[0], put),
    "set": ({0.5}, lambda held: next(iter(held)), lambda held, value: held.symmetric_difference_update({0.5, value})),
    "array": (np.array([0.5]), lambda held: float(held[0]), put),
    "memory view": (memoryview(np.array([0.5])), lambda held: held[0], put),
    "data frame": (pd.DataFrame({"rate": [0.5]}), lambda held: float(held["rate"][0]), lambda f, v: put_rate(f, [v])),
    "dataclass": (Options(), lambda held: held.rate, set_rate),
    "frozen dataclass": (Frozen([0.5]), lambda held: held.rates[0], lambda held, value: put(held.rates, value)),
    "enum member": (Level.LOW, lambda held: held.value.rate, lambda held, value: set_rate(held.value, value)),
    "module": (types.ModuleType("own"), lambda held: getattr(held, "rate", 0.5), set_rate),
    "environment": (os.environ, lambda held: float(held.get("OWN", "0.5")), lambda h, value: h.update(OWN=str(value))),
    "context variable": (VARIABLE, lambda held: held.get(), lambda held, value: held.set(value)),
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
