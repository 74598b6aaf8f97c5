"""Gradients of whole rounds equal finite differences for every algorithm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    rng, sizes, val = np.random.default_rng(1), [5, 0, 3, 4], 6
    size = sum(sizes) + val
    pool = Batch(rng.normal(size=(size, IN)), rng.integers(0, OUT, size, np.int32))
    *train, rest = np.split(np.arange(size, dtype=np.int32), np.cumsum(sizes))
    return worlds.World(pool, train, schedule.table(rest, 2, 4), rest, 2, 3, 2)


def number_after_rounds(name):
    """(hyper, initial parameters) -> a number of the model after three rounds, and its gradients."""
    plan, algorithm = (
        [world().schedule(number, probe_ratio=0.5) for number in range(3)],
        worlds.algorithm(name),
    )
    executor = differentiable.unrolled(differentiable.max_steps(plan), epochs=2)
    step = worlds.round_step(world(), algorithm, "fedvg", TASK, executor=executor)
    rounds, schedules = differentiable.over_rounds(step), differentiable.stack_schedules(plan)

    def f(at):
        hyper, params = at
        start = federated_round.init_state(TASK, algorithm, len(world().train), hyper)
        state, _ = rounds(
            start._replace(variables=Variables(params, {})), schedules, world().data(), hyper
        )
        return sum(
            jnp.sin((i + 1) * x).sum()
            for i, x in enumerate(jax.tree.leaves(state.variables.params))
        )

    return worlds.jit(jax.value_and_grad(f))


def direction(at):
    rng = np.random.default_rng(2)
    return jax.tree.map(
        lambda x: rng.normal(size=np.shape(x)) * np.where(np.abs(x) > 0, 0.1, 0), at
    )


def along(gradients, direction):
    return sum(
        jax.tree.leaves(jax.tree.map(lambda s, d: (np.asarray(s) * d).sum(), gradients, direction))
    )


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
    at = jax.tree.map(np.asarray, (worlds.hyper(), model()))
    f, d, step = number_after_rounds(name), direction(at), 1e-6
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its own counters in
        (_, gradients), (above, _), (below, _) = (
            f(jax.tree.map(lambda x, d, s=sign: x + s * step * d, at, d)) for sign in (0, 1, -1)
        )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    np.testing.assert_allclose(
        along(gradients, d), (above - below) / (2 * step), rtol=1e-6, atol=1e-8
    )


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
    world, algorithm = worlds.uneven(), worlds.algorithm("fedavg")
    plan = [world.schedule(number) for number in range(2)]
    start = worlds.state(world, algorithm, worlds.QUADRATIC)
    stacked, data = differentiable.stack_schedules(plan), world.data()

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
        weights = fedvg_jax.inverse_norm_weights(
            fedvg_jax.gradient_norms(grads, norm), granularity, eps
        )
        numbers.append(
            sum(
                jnp.sin(x).sum()
                for x in jax.tree.leaves(fedvg_jax.aggregate(theta, clients, weights))
            )
        )
    return jnp.stack(numbers)


def test_gradients_of_fedvg_weights_equal_finite_differences(x64):
    """For every norm and granularity at once: forward mode against central differences along one direction, reverse
    mode against forward mode; with respect to the clients, the validation images and eps."""
    rng = np.random.default_rng(4)
    clients = jax.tree.map(lambda x: np.asarray(x) + 0.5 * rng.normal(size=(3, *x.shape)), model())
    val = Batch(rng.normal(size=(2, 2, IN)), np.array([[0, 1], [3, 1]], np.int32))
    at = clients, val.x, np.float64(0.1)
    d, step = direction(at), 1e-6

    def f(clients, x, eps):
        return aggregated(clients, val._replace(x=x), eps)

    @worlds.jit
    def both(at, direction, cotangent):
        value, pushed = jax.jvp(f, at, direction)
        return value, pushed, jax.vjp(f, *at)[1](cotangent)

    cotangent = np.random.default_rng(5).normal(size=len(PAIRS))
    _, pushed, pulled = both(at, d, cotangent)
    moved = (jax.tree.map(lambda x, d, s=s: x + s * step * d, at, d) for s in (1, -1))
    there, back = (both(at, d, cotangent)[0] for at in moved)
    np.testing.assert_allclose(pushed, (there - back) / (2 * step), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(along(pulled, d), cotangent @ pushed, rtol=1e-9)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "adamw"}], ids=str)
def test_gradients_through_an_optimiser_are_finite_where_a_weight_has_no_gradient(settings):
    """Two steps on w_0^2 / 2, which does not depend on w_1; with respect to the rate and the initial weights."""
    optimiser = resolve.method.make_optimiser(Config(**settings))

    @worlds.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradients_of(hyper, weights):
        rule, start = optimiser(hyper, jnp.int32(0)), weights
        after = rule.init(start)
        for _ in range(2):
            with local_training.standard_promotion():
                updates, after = rule.update(weights * jnp.float32([1, 0]), after, weights)
            weights = weights + updates
        return (weights**2).sum()

    by_argument = gradients_of(resolve.method.scalars(Config(**settings)), jnp.float32([0.7, 0.3]))
    assert (
        all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(by_argument))
        and by_argument[0]["lr"] != 0
    )
