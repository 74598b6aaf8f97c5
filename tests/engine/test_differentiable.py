"""Gradients of whole rounds equal finite differences for every algorithm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import worlds

import fedvg_jax
from fedvg_jax import config, resolve
from fedvg_jax.config import Config
from fedvg_jax.core import groups, norms
from fedvg_jax.core.types import Batch, Task, Variables
from fedvg_jax.engine import differentiable, executors, federated_round, local_training, schedule

ALGORITHMS = tuple(config.ALGORITHMS)
IN, OUT = 6, 4


def predict(params, stats, batch):
    return batch.x @ params["w"] + params["b"][None]


def loss(params, stats, batch, mask, train):
    """The loss of logistic regression, which is smooth and has only two tensors to compile for."""
    losses = -jnp.take_along_axis(
        jax.nn.log_softmax(predict(params, stats, batch)), batch.y[:, None], 1
    )[:, 0]
    return jnp.where(mask, losses, 0).sum() / jnp.maximum(mask.sum(), 1).astype(losses.dtype), stats


def model():
    rng = np.random.default_rng(0)
    return jax.tree.map(jnp.asarray, {"w": rng.normal(size=(IN, OUT)), "b": rng.normal(size=OUT)})


TASK = Task(lambda key: Variables(model(), {}), loss, predict, None, None, lambda path: path)


@functools.cache
def world():
    """Four clients, one without a row, three a round."""
    rng = np.random.default_rng(1)
    sizes = [5, 0, 3, 4]
    val = 6
    size = sum(sizes) + val
    pool = Batch(rng.normal(size=(size, IN)), rng.integers(0, OUT, size, np.int32))
    *train, rest = np.split(np.arange(size, dtype=np.int32), np.cumsum(sizes))
    return worlds.World(pool, train, schedule.table(rest, 2, 4), rest, 2, 3, 2)


def number_of(model):
    """A smooth number of all tensors."""
    flat, _ = ravel_pytree(model)
    return jnp.sin(flat).sum()


def number_after_rounds(name, unravel):
    """Flat (hyper, initial parameters) -> a number of the model after three rounds, and its gradient."""
    plan = [world().schedule(number, probe_ratio=0.5) for number in range(3)]
    algorithm = worlds.algorithm(name)
    executor = differentiable.unrolled(differentiable.max_steps(plan), epochs=2)
    step = worlds.round_step(world(), algorithm, "fedvg", TASK, executor=executor)
    rounds = differentiable.over_rounds(step)
    schedules = differentiable.stack_schedules(plan)

    def f(at):
        hyper, params = unravel(at)
        start = federated_round.init_state(TASK, algorithm, len(world().train), hyper)
        start = start._replace(variables=Variables(params, {}))
        state, _ = rounds(start, schedules, world().data(), hyper)
        return number_of(state.variables.params)

    return worlds.jit(jax.value_and_grad(f))


def direction(at):
    """A random one, in which no hyperparameter of 0 changes."""
    return np.random.default_rng(2).normal(size=at.shape) * np.where(at == 0, 0, 0.1)


WITHOUT_LOSS = [name for name in ALGORITHMS if worlds.algorithm(name).loss is None]
"""Algorithms that need no outputs or features of a network."""

QUICK = ("scaffold",)
"""Algorithms with states on both sides, messages and a displacement."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in WITHOUT_LOSS]
)
def test_gradients_through_rounds_equal_finite_differences(x64, name):
    """Along a random direction of all hyperparameters and the initial model. Nothing is NaN although a client has no
    rows."""
    at, unravel = ravel_pytree((worlds.hyper(), model()))
    f = number_after_rounds(name, unravel)
    d = direction(at)
    step = 1e-6
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its own counters in
        (_, gradient), (above, _), (below, _) = (f(at + s * step * d) for s in (0, 1, -1))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient @ d, (above - below) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"epochs": 3}, {"epochs": 8, "remat": False}], ids=str)
def test_the_loop_takes_the_given_number_of_steps(x64, options):
    """x <- a x + i from 0.7, and NaN where the loop is too short."""
    loop = differentiable.unrolled(8, **options).loop
    f = worlds.jit(
        jax.value_and_grad(lambda a, n: loop(n, lambda i, x: a * x + i.astype(x.dtype), 0.7))
    )
    for count in (0, 1, 5, 8):
        derivative, x = 0.0, 0.7
        for i in range(count):
            derivative, x = x + 1.1 * derivative, 1.1 * x + i
        np.testing.assert_allclose(f(1.1, jnp.int32(count)), (x, derivative), rtol=1e-12)
    assert np.isnan(f(1.1, jnp.int32(9))[0])


def test_forward_mode_through_the_fast_executor_equals_reverse_mode(x64):
    """Of the sum of the models after two rounds of FedAvg; another learning rate compiles nothing."""
    world = worlds.uneven()
    algorithm = worlds.algorithm("fedavg")
    plan = [world.schedule(number) for number in range(2)]
    start = worlds.state(world, algorithm, worlds.QUADRATIC)
    stacked = differentiable.stack_schedules(plan)
    data = world.data()

    def gradients(mode, executor, hyper):
        rounds = differentiable.over_rounds(
            worlds.round_step(world, algorithm, "fedvg", executor=executor)
        )

        def objective(hyper):
            state, _ = rounds(start, stacked, data, hyper)
            return sum(x.sum() for x in jax.tree.leaves(state.variables.params))

        return differentiable.hypergradient(objective, hyper, ["lr", "fedvg.eps"], mode=mode)

    unrolled = differentiable.unrolled(differentiable.max_steps(plan))
    reverse = worlds.jit(functools.partial(gradients, "reverse", unrolled))
    forward = worlds.jit(functools.partial(gradients, "forward", executors.lanes(1)))
    for lr in (0.3, 0.1):
        hyper = worlds.hyper(lr=lr, **{"fedvg.eps": 1.0})
        (value, by_name), expected = reverse(hyper), forward(hyper)
        worlds.assert_close((value, by_name), expected, 1e-12)
        assert all(abs(derivative) > 1e-6 for derivative in by_name.values())
    assert reverse._cache_size() == 1


# --- from validation gradients to the aggregated model

PAIRS = [(norm, "modelwise") for norm in norms.BY_NAME] + [
    ("l2", granularity) for granularity in groups.BY_NAME
]
"""A granularity takes the norms as numbers, whichever they are."""


def aggregated(clients, val, eps):
    """[pairs] a number of the model aggregated by every norm and granularity."""
    theta = jax.tree.map(lambda x: 0.9 * x, model())
    grads = fedvg_jax.validation_gradients(
        lambda p, b: loss(p, {}, b, jnp.ones(2, bool), True)[0], clients, val
    )
    numbers = []
    for norm, granularity in PAIRS:
        measured = fedvg_jax.gradient_norms(grads, norm)
        weights = fedvg_jax.inverse_norm_weights(measured, granularity, eps)
        numbers.append(number_of(fedvg_jax.aggregate(theta, clients, weights)))
    return jnp.stack(numbers)


def test_gradients_of_fedvg_weights_equal_finite_differences(x64):
    """For every norm and granularity at once: forward mode against central differences along one direction, reverse
    mode against forward mode; with respect to the clients, the validation images and eps."""
    rng = np.random.default_rng(4)
    clients = jax.tree.map(lambda x: np.asarray(x) + 0.5 * rng.normal(size=(3, *x.shape)), model())
    labels = np.array([[0, 1], [3, 1]], np.int32)
    at, unravel = ravel_pytree((clients, rng.normal(size=(2, 2, IN)), 0.1))
    d = direction(at)
    cotangent = rng.normal(size=len(PAIRS))
    step = 1e-6

    def f(at):
        clients, x, eps = unravel(at)
        return aggregated(clients, Batch(x, labels), eps)

    @worlds.jit
    def both(at):
        value, pushed = jax.jvp(f, (at,), (d,))
        (pulled,) = jax.vjp(f, at)[1](cotangent)
        return value, pushed, pulled

    (_, pushed, pulled), (there, *_), (back, *_) = (both(at + s * step * d) for s in (0, 1, -1))
    np.testing.assert_allclose(pushed, (there - back) / (2 * step), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(pulled @ d, cotangent @ pushed, rtol=1e-9)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "adamw"}], ids=str)
def test_gradients_through_an_optimiser_are_finite_where_a_weight_has_no_gradient(settings):
    """Two steps on w_0^2 / 2, which does not depend on w_1; with respect to the rate and the initial weights."""
    optimiser = resolve.method.make_optimiser(Config(**settings))

    @worlds.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradients_of(hyper, weights):
        rule = optimiser(hyper, jnp.int32(0))
        start = weights
        after = rule.init(start)
        for _ in range(2):
            with local_training.standard_promotion():
                updates, after = rule.update(weights * jnp.float32([1, 0]), after, weights)
            weights = weights + updates
        return (weights**2).sum()

    by_argument = gradients_of(resolve.method.scalars(Config(**settings)), jnp.float32([0.7, 0.3]))
    flat, _ = ravel_pytree(by_argument)
    assert np.isfinite(flat).all() and by_argument[0]["lr"] != 0
