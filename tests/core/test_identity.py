"""Objects from Python are equal by what they compute, in every process, and not by how their source is written."""

import dataclasses
import functools
import os
import subprocess
import sys
import textwrap
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn, nnx

import fedvg_jax as fv
from fedvg_jax.core.identity import identify

pytestmark = pytest.mark.quick


def made(source):
    """The object `made` of a module with this source."""
    names = {"__name__": "users_module"}
    exec(textwrap.dedent(source), names)
    return names["made"]


def digest(source):
    return identify(made(source))


BASE = """
POWER = 2.0
def helper(x):
    return x + 1
def made(x, y=1, *, z=2):
    values = [helper(i) ** POWER for i in x if i not in {"a", "b"}]
    try:
        return max(values, key=lambda v: -v)
    except ValueError:
        return y
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    values =", "    # a comment\n\n    values ="),
        ("POWER = 2.0", "OTHER = 3.0\nPOWER = 2.0"),
        ("lambda v: -v", "(\n        lambda v: (-v)  # largest first\n    )"),
    ],
)
def test_comments_and_positions_are_no_change(old, new):
    assert digest(BASE) == digest(BASE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + 1", "x + 2"),
        ("POWER = 2.0", "POWER = 2"),
        ("y=1", "y=2"),
        ("z=2", "z=3"),
        ("-v", "v"),
        ('"a", "b"', '"a", "c"'),
        ("** POWER", "* POWER"),
        ("except ValueError", "except TypeError"),
        ("max(", "min("),
        ("made(x, y=1, *, z=2)", "made(x, y=1, z=2)"),
    ],
)
def test_code_constants_defaults_and_values_of_the_module_are_changes(old, new):
    assert digest(BASE) != digest(BASE.replace(old, new))


def test_functions_of_other_modules_of_the_user_count(monkeypatch):
    module = types.ModuleType("users_helpers")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def digest_with(source):
        exec(source, vars(module))
        of_name = made("import users_helpers\nmade = lambda x: users_helpers.helper(x)")
        imported = made("from users_helpers import helper\nmade = lambda x: helper(x)")
        return identify(of_name), identify(imported)

    first = digest_with("def helper(x): return x + 1")
    assert first == digest_with("def helper(x): return x + 1  # one more\ndef other(x): return x")
    assert not {*first} & {*digest_with("def helper(x): return x + 2")}


class Net(nn.Module):
    """A network of one layer."""

    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(x)


EXAMPLE = np.ones((1, 4), np.float32)


def squared(output, y):
    return (output[..., 0] - y) ** 2


def linen(width):
    return fv.linen_task(Net(width), squared, EXAMPLE)


def of_nnx(width):
    return fv.nnx_task(lambda rngs: nnx.Linear(4, width, rngs=rngs), squared, EXAMPLE)


@dataclasses.dataclass
class Derived:
    value: dataclasses.InitVar[int]

    def __post_init__(self, value):
        self.doubled = 2 * value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Rule:
    def __init__(self, value):
        self.value = value

    def __call__(self, hyper, client, data):
        return client.num_samples**self.value


def enclosed(value):
    return lambda x: x * value


def cyclic(value):
    cycle = [value]
    cycle.append(cycle)
    return cycle


def add(x, y):
    return x + y


PAIRS = {
    "value of an enclosing function": (enclosed, 1, 2),
    "partial with keywords": (lambda v: functools.partial(add, y=v), 1, 2),
    "array": (lambda v: enclosed(jnp.full(3, v)), 1.0, 2.0),
    "bfloat16": (lambda v: jnp.full(3, v, jnp.bfloat16), 1.0, 2.0),
    "key": (jax.random.key, 1, 2),
    "slot": (Slotted, 1, 2),
    "attribute that is no field": (Derived, 1, 2),
    "method": (lambda v: Rule(v).__call__, 1, 2),
    "jitted": (lambda v: jax.jit(enclosed(v)), 1, 2),
    "cycle": (cyclic, 1, 2),
    "optimiser": (optax.adam, 1e-2, 1e-3),
    "task of Linen": (linen, 1, 2),
    "task of NNX": (of_nnx, 1, 2),
    "weighting": (lambda v: fv.weightings.by_scalar(enclosed(v)), 1, 2),
    "algorithm": (
        lambda v: fv.algorithms.fedavg()._replace(hyperparameters=(fv.Hyperparameter("a", v),)),
        1.0,
        2.0,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_in_objects_tell_them_apart(name):
    make, value, other = PAIRS[name]
    assert identify(make(value)) == identify(make(value)) != identify(make(other))


def test_object_with_a_part_without_a_digest_equals_none():
    lock = threading.Lock()
    assert identify(enclosed(lock)) != identify(enclosed(lock))


def test_digests_are_equal_in_other_processes():
    """With other seeds of the hashes by which Python orders sets."""
    program = "from core import test_identity as t\n"
    program += "print([t.identify(make(v)) for make, v, _ in t.PAIRS.values()])"
    folder = os.path.dirname(os.path.dirname(__file__))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    printed = set()
    for seed in ("1", "2"):
        command, changed = [sys.executable, "-c", program], environment | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=changed)
        printed.add(done.stdout)
    assert len(printed) == 1
