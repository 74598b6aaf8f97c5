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


QUADRATIC = worlds.uneven()


def of_quadratics(horizon=None, executor=None, num_rounds=2):
    """(lr, x) -> the sum of the models after rounds of FedAvg with uniform weights, and the schedules of the rounds."""
    plans = [QUADRATIC.schedule(number) for number in range(num_rounds)]
    executor = executor or differentiable.unrolled(differentiable.max_steps(plans))
    step = worlds.round_step(QUADRATIC, worlds.algorithm("fedavg"), "uniform", executor=executor)
    rounds = differentiable.over_rounds(step, horizon=horizon)
    start = worlds.state(QUADRATIC, worlds.algorithm("fedavg"), worlds.QUADRATIC)

    def run(lr, params):
        given = (
            start._replace(variables=Variables(params, {})),
            differentiable.stack_schedules(plans),
        )
        state, _ = rounds(*given, QUADRATIC.data(), worlds.hyper() | {"lr": lr})
        return sum(x.sum() for x in jax.tree.leaves(state.variables.params))

    return run, plans


def joined(params):
    return np.concatenate([params["left"]["x"], params["right"]["x"]], -1)


def own_quadratics(plan):
    """Returns a and the minimum b / a of every client of a round, [K, 3]."""
    a, b = (
        joined(part)[[QUADRATIC.train[client][0] for client in plan.clients]]
        for part in QUADRATIC.pool
    )
    return a, b / a


def after_steps(plan, lr, x, fewer=0):
    """Returns the clients' models after their steps from x, [K, 3], or after some steps fewer."""
    a, minimum = own_quadratics(plan)
    return minimum + (1 - lr * a) ** (plan.num_steps[:, None] - fewer) * (x - minimum)


def slope(plan, lr, x):
    """Returns the derivative of the mean of the clients' models after their steps from x with respect to lr, [3]."""
    a, minimum = own_quadratics(plan)
    steps = plan.num_steps[:, None]
    return np.mean(-steps * a * (1 - lr * a) ** (steps - 1) * (x - minimum), 0)


def test_a_horizon_stops_gradients_of_earlier_rounds(x64):
    """A horizon of one round leaves no path to the initial model, and to the learning rate that of the last round. No
    learning rate recompiles the program."""
    f, (first, last) = of_quadratics(horizon=1)
    f, start = worlds.jit(jax.value_and_grad(f, (0, 1))), worlds.QUADRATIC.init(None).params
    for lr in (0.3, 0.0):
        value, (by_lr, by_start) = f(jnp.asarray(lr), start)
        between = after_steps(first, lr, joined(start)).mean(0)
        np.testing.assert_allclose(value, after_steps(last, lr, between).mean(0).sum(), rtol=1e-12)
        np.testing.assert_allclose(by_lr, slope(last, lr, between).sum(), rtol=1e-12)
        assert not joined(by_start).any()
    assert f._cache_size() == 1


def test_a_client_s_horizon_keeps_gradients_of_its_last_steps(x64):
    """With a horizon of one step, the derivative with respect to the initial model passes through clients with a single
    step only, 1 - lr a each; that with respect to lr is minus the gradient at the last step, a (x - b / a). The values
    are those of all steps."""
    most, lr = differentiable.max_steps([QUADRATIC.schedule(0)]), 0.3
    f, (plan,) = of_quadratics(
        executor=differentiable.unrolled(most, horizon=1, num_lanes=2), num_rounds=1
    )
    start = worlds.QUADRATIC.init(None).params
    value, (by_lr, by_start) = worlds.jit(jax.value_and_grad(f, (0, 1)))(lr, start)
    (a, minimum), x = own_quadratics(plan), joined(start)
    assert plan.num_steps.min() >= 1 and plan.num_steps.max() > 1
    np.testing.assert_allclose(value, after_steps(plan, lr, x).mean(0).sum(), rtol=1e-12)
    np.testing.assert_allclose(
        by_lr, -(a * (after_steps(plan, lr, x, fewer=1) - minimum)).mean(0).sum(), rtol=1e-12
    )
    expected = np.where(plan.num_steps[:, None] == 1, 1 - lr * a, 0).mean(0)
    np.testing.assert_allclose(joined(by_start), expected, atol=1e-12)


def test_forward_mode_through_the_fast_executor_equals_reverse_mode(x64):
    start = worlds.QUADRATIC.init(None).params
    by_mode = []
    for mode, executor in (("reverse", None), ("forward", executors.lanes(1))):
        f, _ = of_quadratics(executor=executor)
        objective = lambda hyper, f=f: f(hyper["lr"] * hyper["fedvg.eps"], start)  # noqa: E731
        hyper = {
            "lr": jnp.float64(0.3),
            "fedvg.eps": jnp.float64(1.0),
            "fedprox.mu": jnp.float64(0),
        }
        gradient = functools.partial(
            differentiable.hypergradient, objective, names=["lr", "fedvg.eps"], mode=mode
        )
        by_mode.append(worlds.jit(gradient)(hyper))
    worlds.assert_close(by_mode[1], by_mode[0], 1e-12)
    assert set(by_mode[0][1]) == {"lr", "fedvg.eps"} and abs(by_mode[0][1]["lr"]) > 1e-3


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
    def slopes(hyper, weights):
        rule, start = optimiser(hyper, jnp.int32(0)), weights
        after = rule.init(start)
        for _ in range(2):
            with local_training.standard_promotion():
                updates, after = rule.update(weights * jnp.float32([1, 0]), after, weights)
            weights = weights + updates
        return (weights**2).sum()

    by_argument = slopes(
        resolve.hyperparameters.scalars(Config(**settings)), jnp.float32([0.7, 0.3])
    )
    assert (
        all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(by_argument))
        and by_argument[0]["lr"] != 0
    )


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_an_integer_is_differentiated_like_the_float_of_its_value(mode):
    for number in (2, np.array(2), jnp.int32(2)):
        hyper = {"lr": number, "fedprox.mu": 1}
        value, gradients = differentiable.hypergradient(
            lambda h: h["lr"] ** 2 + h["fedprox.mu"], hyper, ["lr"], mode=mode
        )
        assert (value, gradients["lr"]) == (5.0, 4.0)
