"""Tasks from a user's own Linen and NNX modules, and one-line errors for modules that cannot be trained."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import worlds

import fedvg_jax
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, ClientReturn, Data, Variables
from fedvg_jax.weightings import signals

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = RNG.normal(size=6).astype(np.float32)
BATCH = Batch(jnp.asarray(X), jnp.asarray(Y))
MASK = jnp.arange(6) < 4


def squared(output, y):
    return (output - y) ** 2


class LinenNet(nn.Module):
    width: int = 4
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, mask, train):
        x = nn.Dense(self.width, name="first")(x)
        x = nn.BatchNorm(not train, momentum=0.9, name="norm")(x, mask=mask[:, None])
        x = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
        return nn.Dense(1, name="last")(x)[:, 0]


class NnxNet(nnx.Module):
    def __init__(self, rngs, width=4, dropout=0.0):
        self.first = nnx.Linear(3, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.last = nnx.Linear(width, 1, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x, mask):
        x = nnx.relu(self.norm(self.first(x), mask=mask[:, None]))
        return self.last(self.dropout(x))[:, 0]


METRICS = {"absolute": lambda output, y: abs(output - y)}
TASKS = {
    "linen": fedvg_jax.linen_task(LinenNet(), squared, X[:1], metrics=METRICS),
    "nnx": fedvg_jax.nnx_task(NnxNet, squared, X[:1], metrics=METRICS),
}
every_library = pytest.mark.parametrize("library", TASKS)


def by_hand(variables: Variables, train: bool) -> tuple[np.ndarray, dict]:
    """Outputs of the four real rows and the running statistics after them, in NumPy. Flax updates the running variance
    with the biased one."""
    params, stats = jax.tree.map(lambda a: np.asarray(a, float), variables)
    x = X[:4] @ params["first"]["kernel"] + params["first"]["bias"]
    used = {"mean": x.mean(0), "var": x.var(0)} if train else stats["norm"]
    y = (x - used["mean"]) / np.sqrt(used["var"] + 1e-5)
    y = y * params["norm"]["scale"] + params["norm"]["bias"]
    y = np.maximum(y, 0) @ params["last"]["kernel"] + params["last"]["bias"]
    updated = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, stats["norm"], used)
    return y[:, 0], {"norm": updated}


@pytest.mark.quick
@every_library
def test_loss_is_the_mean_over_the_real_rows(x64, library):
    task = TASKS[library]
    variables = worlds.variables(task=task)
    run = worlds.jit(task.loss, static_argnums=4)
    for train in (True, False):
        with jax.numpy_dtype_promotion("standard"):  # Flax's BatchNorm promotes
            loss, stats = run(*variables, BATCH, MASK, train)
        outputs, updated = by_hand(variables, train)
        np.testing.assert_allclose(loss, np.square(outputs - Y[:4]).mean(), rtol=1e-9)
        worlds.assert_close(stats, updated, 1e-9)


def test_scoring_several_groups_at_once_equals_group_by_group_where_one_is_empty(x64):
    """Statistics over no row, of Flax's BatchNorm, have gradients that are NaN."""
    task = TASKS["linen"]
    groups = jnp.array([[0, 1, -1], [2, 3, 4], [-1, -1, -1], [5, -1, -1]], jnp.int32)
    variables = worlds.variables(task=task)
    data = Data(Batch(X, Y), *3 * [groups])
    client = ClientReturn(variables, jnp.int32(1), variables.params)

    def scored(groups_per_pass):
        measure = signals.validation_gradient(task, True, groups_per_pass)
        with jax.numpy_dtype_promotion("standard"):  # Flax's BatchNorm promotes
            return worlds.jit(measure)({}, client, data)

    worlds.assert_close(scored(4), scored(1), 1e-9)


@every_library
def test_metrics_are_means_over_the_rows_of_all_batches(x64, library):
    task = TASKS[library]
    variables = worlds.variables(task=task)
    measure = worlds.jit(task.measure)
    is_first = jnp.arange(6) < 1
    with jax.numpy_dtype_promotion("standard"):  # of rows in float32 by a model in float64
        sums = [measure(*variables, BATCH, MASK & mask) for mask in (is_first, ~is_first)]
    errors = np.abs(by_hand(variables, False)[0] - Y[:4])
    expected = {"loss": np.square(errors).mean(), "absolute": errors.mean()}
    assert task.metrics(tree.add(*sums)) == pytest.approx(expected, rel=1e-9)


class Echo(nn.Module):
    """Returns its input; its parameter is in bfloat16, in which 1001 is 1000."""

    @nn.compact
    def __call__(self, x, mask=None, train=True):
        self.param("zero", nn.initializers.zeros, (1,), jnp.bfloat16)
        return x


def difference(output, y):
    return abs(output[0] - y)


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_inputs_and_targets_reach_a_module_of_half_precision_as_they_are(dtype):
    x = np.full((5, 1), 1001, dtype)
    y = np.full(5, 1003, np.float32)
    task = fedvg_jax.linen_task(Echo(), difference, x[:1])
    variables = task.init(jax.random.key(0))
    with jax.numpy_dtype_promotion("standard"):
        assert fedvg_jax.evaluate(task, variables, (x, y)) == {"loss": 2}
    assert task.predict(*variables, Batch(jnp.asarray(x), jnp.asarray(y))).dtype == dtype


def test_float_rows_reach_a_classifier_of_half_precision_as_they_are():
    x = jnp.full((2, 3), 1001, jnp.float32)
    task = fedvg_jax.models.classification(Echo(), 3, (3,))
    variables = task.init(jax.random.key(0))
    assert task.predict(*variables, Batch(x, jnp.zeros(2, jnp.int32))).tolist() == x.tolist()


class Modes(nn.Module):
    """Returns one of its own arguments."""

    @nn.compact
    def __call__(self, x, training, is_training=0, deterministic=0, use_running_average=0):
        self.param("unused", nn.initializers.zeros, (1,))
        modes = jnp.array([training, is_training, deterministic, use_running_average])
        return jnp.broadcast_to(modes, (len(x), 4))


def test_module_gets_the_mode_under_the_argument_names_it_has():
    task = fedvg_jax.linen_task(Modes(), lambda modes, y: jnp.where(modes, y, 0).sum(), X[:1])
    batch = Batch(BATCH.x, jnp.broadcast_to(jnp.array([8.0, 4.0, 2.0, 1.0]), (6, 4)))
    losses = [task.loss({"unused": jnp.zeros(1)}, {}, batch, MASK, t)[0] for t in (True, False)]
    assert losses == [8 + 4, 2 + 1]


# --- modules that draw random numbers


RANDOM = {"width": 32, "dropout": 0.5}
RANDOM_TASKS = {
    "linen": fedvg_jax.linen_task(LinenNet(**RANDOM), squared, X[:1]),
    "nnx": fedvg_jax.nnx_task(functools.partial(NnxNet, **RANDOM), squared, X[:1]),
}


@every_library
def test_dropout_draws_from_the_key_and_is_the_identity_without_one(library):
    task = RANDOM_TASKS[library]
    variables = worlds.jit(task.init)(jax.random.key(0))

    @worlds.jit
    def losses(keys):
        drawn = jax.vmap(lambda key: task.loss(*variables, BATCH, MASK, True, key)[0])(keys)
        return drawn, task.loss(*variables, BATCH, MASK, True)[0]

    keys = jax.random.split(jax.random.key(1), 100)
    values, scored = losses(keys)
    assert len(np.unique(values)) == 100
    np.testing.assert_array_equal(values, losses(keys)[0])
    # E (y + noise - t)^2 = (y - t)^2 + var: a random loss exceeds the deterministic one on average
    assert values.min() < scored < values.mean()


# --- statistics and constants


class Constants(nnx.Module):
    """Arrays of both libraries as attributes, and a variable of another kind."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 1, rngs=rngs)
        self.jax, self.numpy = jnp.arange(3.0), np.full(3, 2, np.float32)
        self.scale = nnx.Variable(jnp.ones(3))

    def __call__(self, x):
        return self.linear(x * self.jax[None] * self.numpy[None] * self.scale[None])[:, 0]


class LinenConstants(nn.Module):
    @nn.compact
    def __call__(self, x):
        scale = self.variable("constants", "scale", lambda: jnp.array([0.0, 2.0, 4.0]))
        return nn.Dense(1, name="linear")(x * scale.value[None])[:, 0]


CONSTANTS = {
    "linen": fedvg_jax.linen_task(LinenConstants(), squared, X[:1]),
    "nnx": fedvg_jax.nnx_task(Constants, squared, X[:1]),
}


@every_library
def test_what_a_module_has_besides_parameters_and_statistics_is_constant(library):
    task = CONSTANTS[library]
    variables = worlds.jit(task.init)(jax.random.key(0))
    assert tree.paths(variables.params) == ["linear/bias", "linear/kernel"]
    expected = X * [0, 2, 4] @ np.asarray(variables.params["linear"]["kernel"])[:, 0]
    np.testing.assert_allclose(worlds.jit(task.predict)(*variables, BATCH), expected, rtol=1e-5)
