"""Gradients of whole rounds equal finite differences for every algorithm, and the rounds equal the fast executor's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

import fedvg_jax
from fedvg_jax.core import groups, norms
from fedvg_jax.core.types import Batch, Task, UsageError, Variables
from fedvg_jax.engine import differentiable, executors, federated_round, local_training, schedule
from fedvg_jax.runs import simulation

ROUNDS = 3
ALGORITHMS = tuple(simulation.ALGORITHMS)
IN, OUT = 6, 4


def predict(params, stats, batch):
    return batch.x @ params["w"] + params["b"][None]


def loss(params, stats, batch, mask, train):
    """The loss of logistic regression, which is smooth and has only two tensors to compile for."""
    losses = -jnp.take_along_axis(jax.nn.log_softmax(predict(params, stats, batch)), batch.y[:, None], 1)[:, 0]
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


def planned(num_lanes=1):
    return [world().schedule(number, num_lanes, probe_ratio=0.5) for number in range(ROUNDS)]


def round_step(name, executor, weighting="fedvg", optimiser=local_training.sgd):
    algorithm = worlds.algorithm(name)
    rule = worlds.weighting(weighting, algorithm, TASK)
    return federated_round.make_round(TASK, algorithm, rule, executor, optimiser, len(world().train))


def with_number(step):
    """Returns a round whose output is one number computed from its model."""

    def numbered(state, *rest):
        state, _ = step(state, *rest)
        leaves = jax.tree.leaves(state.variables.params)
        return state, sum(jnp.sin((i + 1) * x).sum() for i, x in enumerate(leaves))

    return numbered


def numbers(name, executor, remat=True, horizon=None, weighting="fedvg"):
    """(hyper, initial parameters) -> [R] a number of every round's model."""
    rounds = differentiable.over_rounds(
        with_number(round_step(name, executor, weighting)), remat=remat, horizon=horizon
    )
    schedules, data = differentiable.stack(planned(executor.num_lanes)), world().data()

    def f(hyper, params):
        state = federated_round.init_state(TASK, worlds.algorithm(name), len(world().train), jax.random.key(0), hyper)
        return rounds(state._replace(variables=Variables(params, {})), schedules, data, hyper)[1]

    return f


def unrolled(**options):
    return differentiable.unrolled(differentiable.most_steps(planned()), **options)


def chosen(f):
    """Returns a function for value and gradients of a weighted sum of the numbers of f, compiled once."""

    def run(at, which):
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its own counters in
            return compiled(at, which)

    compiled = worlds.jit(jax.value_and_grad(lambda at, which: which @ f(*at)))
    return run


def direction(at):
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: rng.normal(size=np.shape(x)) * np.where(np.abs(x) > 0, 0.1, 0), at)


def along(gradients, direction):
    return sum(jax.tree.leaves(jax.tree.map(lambda s, d: (np.asarray(s) * d).sum(), gradients, direction)))


QUICK = ("scaffold",)
"""Algorithms with memories on both sides, messages and a displacement."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in ALGORITHMS])
def test_gradients_through_rounds_equal_finite_differences(x64, name):
    """Along a random direction of all hyperparameters and the initial model. Nothing is NaN although a client has no
    rows, and the rounds equal the fast executor's."""
    at = jax.tree.map(np.asarray, (worlds.hyper(), model()))
    f, d, step = chosen(numbers(name, unrolled(epochs=2))), direction(at), 1e-5
    above, below = (jax.tree.map(lambda x, d, s=sign: x + s * step * d, at, d) for sign in (1, -1))
    for which in (np.array([1.0, 0, 0]), np.array([0, 0, 1.0])):
        _, gradients = f(at, which)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
        expected = (f(above, which)[0] - f(below, which)[0]) / (2 * step)
        np.testing.assert_allclose(along(gradients, d), expected, rtol=1e-6, atol=1e-8)


def fast_equals_unrolled(name, weighting="fedvg"):
    at = worlds.hyper(), model()
    unrolled_numbers, expected = (
        worlds.jit(numbers(name, executor, weighting=weighting))(*at)
        for executor in (unrolled(epochs=2), executors.lanes(2))
    )
    np.testing.assert_allclose(unrolled_numbers, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_unrolled_rounds_equal_the_fast_executor_for_every_algorithm(x64, name):
    fast_equals_unrolled(name)


@functools.cache
def scalar_rounds(**options):
    """The loop alone: x <- a x + i, for a given number of steps."""
    loop = differentiable.unrolled(8, **options).loop
    return worlds.jit(jax.value_and_grad(lambda a, count, x: loop(count, lambda i, x: a * x + i.astype(x.dtype), x)))


@pytest.mark.parametrize("options", [{}, {"epochs": 3}, {"epochs": 8, "remat": False}, {"epochs": 100}], ids=str)
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_the_loop_takes_the_given_number_of_steps(x64, options, count):
    f = scalar_rounds(**options)
    expected, derivative, x = 0.7, 0.0, 0.7
    for i in range(count):
        derivative, x = x + 1.1 * derivative, 1.1 * x + i
    value, slope = f(1.1, jnp.int32(count), 0.7)
    np.testing.assert_allclose((value, slope), (x if count else expected, derivative), rtol=1e-12)


def test_a_loop_that_is_too_short_returns_nan(x64):
    assert np.isnan(scalar_rounds()(1.1, jnp.int32(9), 0.7)[0])


QUADRATIC = worlds.uneven()


def of_quadratics(horizon=None, executor=None, num_rounds=2):
    """(lr, x) -> the models after two rounds of FedAvg with uniform weights; losses are sum a x^2 / 2 - b x."""
    plans = [QUADRATIC.schedule(number) for number in range(num_rounds)]
    executor = executor or differentiable.unrolled(differentiable.most_steps(plans))
    algorithm = worlds.algorithm("fedavg")
    rule = worlds.weighting("uniform", algorithm)
    step = federated_round.make_round(worlds.QUADRATIC, algorithm, rule, executor, local_training.sgd, 5)
    rounds = differentiable.over_rounds(step, horizon=horizon)
    start = worlds.state(QUADRATIC, algorithm, worlds.QUADRATIC)

    def f(lr, params):
        state, _ = rounds(
            start._replace(variables=Variables(params, {})),
            differentiable.stack(plans),
            QUADRATIC.data(),
            worlds.hyper() | {"lr": lr},
        )
        return sum(x.sum() for x in jax.tree.leaves(state.variables.params))

    return f, plans


def contraction(lr):
    """schedule -> [3] the factor of the model in a round: the mean over its clients of (1 - lr a)^steps."""
    a = np.concatenate([QUADRATIC.pool[0]["left"]["x"], QUADRATIC.pool[0]["right"]["x"]], 1)
    own = np.stack([a[rows[0]] for rows in QUADRATIC.train])

    def of(plan):
        return np.mean((1 - lr * own[plan.clients]) ** plan.num_steps[:, None], 0)

    return of


@pytest.mark.parametrize(("horizon", "through"), [(5, (0, 1)), (1, ())])
def test_a_horizon_stops_gradients_of_earlier_rounds(x64, horizon, through):
    """The derivative of a quadratic's model with respect to the initial one is the product of the rounds' factors. A
    horizon of one round leaves no path to it. No learning rate recompiles the program."""
    f, plans = of_quadratics(horizon)
    start = worlds.QUADRATIC.init(None).params
    gradient = worlds.jit(jax.grad(f, 1))
    for lr in (0.3, 0.1, 0.0):
        gradients = gradient(jnp.asarray(lr), start)
        expected = np.prod([contraction(lr)(plans[i]) for i in through], 0) if through else np.zeros(3)
        np.testing.assert_allclose(
            np.concatenate([gradients["left"]["x"], gradients["right"]["x"]]), expected, rtol=1e-12
        )
    assert gradient._cache_size() == 1


def test_a_client_s_horizon_keeps_gradients_of_its_last_steps(x64):
    """With a horizon of one step, the derivative with respect to the initial model passes through clients with a single
    step only, 1 - lr a each. The values are those of all steps."""
    plans = [QUADRATIC.schedule(0)]
    most = differentiable.most_steps(plans)
    f, _ = of_quadratics(executor=differentiable.unrolled(most, horizon=1, num_lanes=2), num_rounds=1)
    start = worlds.QUADRATIC.init(None).params
    value, gradients = worlds.jit(jax.value_and_grad(f, 1))(0.3, start)
    a = np.concatenate([QUADRATIC.pool[0]["left"]["x"], QUADRATIC.pool[0]["right"]["x"]], 1)
    single = [c for c, n in zip(plans[0].clients, plans[0].num_steps, strict=True) if n <= 1]
    expected = sum((1 - 0.3 * a[QUADRATIC.train[c][0]] for c in single), np.zeros(3)) / 3
    np.testing.assert_allclose(np.concatenate([gradients["left"]["x"], gradients["right"]["x"]]), expected, atol=1e-12)
    first = [QUADRATIC.train[c][0] for c in plans[0].clients]
    a, b = a[first], np.concatenate([QUADRATIC.pool[1]["left"]["x"], QUADRATIC.pool[1]["right"]["x"]], 1)[first]
    x = np.concatenate([start["left"]["x"], start["right"]["x"]])
    trained = b / a + (1 - 0.3 * a) ** plans[0].num_steps[:, None] * (x - b / a)
    np.testing.assert_allclose(value, trained.mean(0).sum(), rtol=1e-12)


def test_forward_mode_through_the_fast_executor_equals_reverse_mode(x64):
    start = worlds.QUADRATIC.init(None).params
    by_mode = []
    for mode, executor in (("reverse", None), ("forward", executors.lanes(1))):
        f, _ = of_quadratics(executor=executor)
        objective = lambda hyper, f=f: f(hyper["lr"] * hyper["eps"], start)  # noqa: E731
        hyper = {"lr": jnp.float64(0.3), "eps": jnp.float64(1.0), "mu": jnp.float64(0)}
        gradient = functools.partial(differentiable.hypergradient, objective, names=["lr", "eps"], mode=mode)
        by_mode.append(worlds.jit(gradient)(hyper))
    worlds.assert_close(by_mode[1], by_mode[0], 1e-12)
    assert set(by_mode[0][1]) == {"lr", "eps"} and abs(by_mode[0][1]["lr"]) > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: differentiable.unrolled(0), "num_steps must be >= 1; got 0"),
        (lambda: differentiable.unrolled(3, epochs=0), "epochs must be >= 1"),
        (lambda: differentiable.unrolled(3, horizon=0), "horizon must be >= 1"),
        (lambda: differentiable.over_rounds(None, horizon=-1), "horizon must be >= 1; got -1"),
        (lambda: differentiable.stack([]), "at least one schedule"),
        (lambda: differentiable.hypergradient(sum, {"lr": 0.1}, ["mu"]), "unknown hyperparameter 'mu'; hyper has lr"),
        (
            lambda: differentiable.hypergradient(sum, {"lr": 0.1}, ["lr"], mode="both"),
            "mode must be reverse or forward",
        ),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# --- from validation gradients to the aggregated model

PAIRS = [(norm, "modelwise") for norm in norms.BY_NAME] + [("l2", granularity) for granularity in groups.BY_NAME]
"""A granularity takes the norms as numbers, whichever they are."""


def aggregated(clients, val, eps):
    """[pairs] a number of the model aggregated by every norm and granularity."""
    theta = jax.tree.map(lambda x: 0.9 * x, model())
    grads = fedvg_jax.validation_gradients(lambda p, b: loss(p, {}, b, jnp.ones(2, bool), True)[0], clients, val)
    numbers = []
    for norm, granularity in PAIRS:
        weights = fedvg_jax.inverse_norm_weights(fedvg_jax.gradient_norms(grads, norm), granularity, eps)
        numbers.append(sum(jnp.sin(x).sum() for x in jax.tree.leaves(fedvg_jax.aggregate(theta, clients, weights))))
    return jnp.stack(numbers)


def scored(num_clients=3):
    rng = np.random.default_rng(4)
    clients = jax.tree.map(lambda x: np.asarray(x) + 0.5 * rng.normal(size=(num_clients, *x.shape)), model())
    return clients, Batch(rng.normal(size=(2, 2, IN)), np.array([[0, 1], [3, 1]], np.int32))


def test_gradients_of_fedvg_weights_equal_finite_differences(x64):
    """For every norm and granularity at once: forward mode against central differences along one direction, reverse
    mode against forward mode; with respect to the clients, the validation images and eps."""
    clients, val = scored()
    at = clients, val.x, np.float64(0.1)
    d, step = direction(at), 1e-5

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


CORNERS = {
    "zero norms": lambda clients, val: (clients, val._replace(x=np.zeros_like(val.x))),
    "equal clients": lambda clients, val: (jax.tree.map(lambda x: np.broadcast_to(x[:1], x.shape), clients), val),
    "one client": lambda clients, val: (jax.tree.map(lambda x: x[:1], clients), val),
}


@functools.cache
def gradients():
    def f(clients, x, eps, y):
        return aggregated(clients, Batch(x, y), eps).sum()

    return worlds.jit(jax.grad(f, (0, 1, 2)))


@pytest.mark.parametrize("corner", CORNERS)
def test_no_gradient_is_nan_at_a_special_value(corner):
    """Images of zeros leave the weights of the network without a gradient."""
    clients, val = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype != np.int32 else x, scored())
    clients, val = CORNERS[corner](clients, val)
    by_argument = gradients()(clients, val.x, jnp.float32(1e-8), val.y)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(by_argument))


def test_reverse_mode_of_a_loop_without_it_is_refused_in_one_line():
    @jax.jit
    def power(count, a):
        return local_training.counted(count, lambda i, x: x * a, jnp.float32(1))

    with pytest.raises(UsageError, match=r"no reverse mode; use fedvg_jax.unrolled\(...\), or mode='forward'"):
        differentiable.hypergradient(lambda hyper: power(3, hyper["a"]), {"a": jnp.float32(2)}, ["a"])
