"""Functions are keyed by the values that they read: equal ones have equal keys, and a changed value changes the key."""

import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedvg_jax as fv
from fedvg_jax.core import value_keys

RATE = 0.5
OTHER = types.SimpleNamespace(rate=0.5, log=[])


class Scale:
    factor = 0.5

    def __init__(self):
        self.rate, self.log = 0.5, []

    def __call__(self, x):
        return self.scaled(x)

    def scaled(self, x):
        return self.factor * self.rate * x


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(2)(nn.Dropout(RATE, deterministic=not train)(x))


def helper(x):
    return RATE * x


def of_closure():
    rate = 0.5

    def change(value):
        nonlocal rate
        rate = value

    return (lambda x: rate * x), change


def of_default():
    def scale(x, rate=0.5):
        return rate * x

    return scale, lambda value: setattr(scale, "__defaults__", (value,))


def of_dict():
    settings = {"rate": 0.5}
    return (lambda x: settings["rate"] * x), lambda value: settings.update(rate=value)


def of_array():
    rates = np.full(3, 0.5)
    return (lambda x: rates * x), rates.fill


def of_object():
    scale = Scale()
    return scale, lambda value: setattr(scale, "rate", value)


def of_method():
    scale = Scale()
    return scale.scaled, lambda value: setattr(Scale, "factor", value)


def of_global():
    return (lambda x: RATE * x), lambda value: globals().update(RATE=value)


def of_helper():
    return jax.jit(lambda x: [helper(row) for row in x]), lambda value: globals().update(RATE=value)


def of_namespace():
    return (lambda x: OTHER.rate * x), lambda value: setattr(OTHER, "rate", value)


def of_module():
    task = fv.linen_task(Net(), optax.softmax_cross_entropy_with_integer_labels, np.ones((1, 3), np.float32))
    return task, lambda value: globals().update(RATE=value)


@pytest.mark.parametrize(
    "place",
    [of_closure, of_default, of_dict, of_array, of_object, of_method, of_global, of_helper, of_namespace, of_module],
    ids=lambda place: place.__name__,
)
def test_a_changed_value_changes_the_key_wherever_a_function_reads_it(place):
    function, change = place()
    before = value_keys.key_of(function)
    assert value_keys.key_of(function) == before
    change(0.25)
    assert value_keys.key_of(function) != before
    change(0.5)
    assert value_keys.key_of(function) == before


def test_what_a_function_does_not_read_does_not_change_its_key():
    scale, reads = Scale(), of_namespace()[0]
    before = value_keys.key_of(scale), value_keys.key_of(reads)
    scale.log.append(1)
    OTHER.log.append(1)
    assert (value_keys.key_of(scale), value_keys.key_of(reads)) == before


def linen(width=2):
    metrics = {"accuracy": lambda output, label: output.argmax() == label}
    loss = optax.softmax_cross_entropy_with_integer_labels
    return fv.linen_task(nn.Dense(width), loss, np.ones((1, 3), np.float32) * width, metrics=metrics)


def of_nnx():
    example = jnp.ones((1, 3))
    return fv.nnx_task(lambda rngs: nnx.Linear(3, 1, rngs=rngs), lambda output, y: (output[0] - y) ** 2, example)


@pytest.mark.parametrize("factory", [linen, of_nnx, fv.algorithms.scaffold], ids=["linen", "nnx", "scaffold"])
def test_a_factory_returns_equal_values(factory):
    assert value_keys.key_of(factory()) == value_keys.key_of(factory())


def test_other_arguments_of_a_factory_are_others():
    keys = {value_keys.key_of(value) for value in (linen(2), linen(3), 1, 1.0, True, 0.0, -0.0, (1,), [1], {1}, "1")}
    assert len(keys) == 11


def test_functions_that_refer_to_each_other_have_keys():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert value_keys.key_of(even) == value_keys.key_of(even) != value_keys.key_of(odd)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_on_the_path_are_installed_ones(folder, monkeypatch):
    """Their functions are constants: following them would lead through all of jax."""
    for parent, is_users in ((folder, False), ("projects", True)):
        name = f"elsewhere_{folder}_{parent}"
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__file__=f"/home/me/{parent}/{name}.py"))
        assert value_keys._is_users(name) == is_users
