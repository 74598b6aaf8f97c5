"""`validation_gradients` is the definition, and the engine scores equally; the Fisher view."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax
from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import ClientReturn, Data, Task, Variables
from fedvg_jax.host import hardware as hw
from fedvg_jax.weightings import fisher, signals

K = 3
WORLD = worlds.small()
NUM_GROUPS = len(WORLD.scoring)


def squared(params, batch):
    """A loss without statistics."""
    return jnp.mean((batch["x"] @ params["w"] + params["b"][None] - batch["y"]) ** 2)


def linear_problem():
    rng = np.random.default_rng(0)
    clients = {
        "w": jnp.asarray(rng.normal(size=(K, 4, 2))),
        "b": jnp.asarray(rng.normal(size=(K, 2))),
    }
    return clients, {
        "x": jnp.asarray(rng.normal(size=(5, 6, 4))),
        "y": jnp.asarray(rng.normal(size=(5, 6, 2))),
    }


def test_validation_gradients_are_the_mean_of_jax_grad_over_clients_and_batches(x64):
    clients, val = linear_problem()
    actual, gradient = (
        fedvg_jax.validation_gradients(squared, clients, val),
        worlds.jit(jax.grad(squared)),
    )
    for k in range(K):
        client = tree.take(clients, k)
        each = [gradient(client, tree.take(val, v)) for v in range(5)]
        expected = jax.tree.map(lambda *g: sum(g) / 5, *each)
        worlds.assert_close(tree.take(actual, k), expected, 1e-12)


def test_every_client_s_loss_uses_its_own_statistics(x64):
    """d/dw of w * s * mean(x) is s * mean(x)."""
    val = jnp.array([[1.0, 3.0], [5.0, 7.0]])
    actual = fedvg_jax.validation_gradients(
        lambda params, stats, x: params["w"] * stats["s"] * x.mean(),
        {"w": jnp.ones(K)}, val, client_stats={"s": jnp.array([1.0, 2.0, -3.0])},
    )  # fmt: skip
    worlds.assert_close(actual, {"w": np.array([4.0, 8.0, -12.0])}, 1e-12)


@functools.cache
def scored(train, sizes):
    """Returns the definition and, for every number of groups in a pass, the engine's signal: gradients and L1 norms."""
    clients = jax.tree.map(lambda *x: jnp.stack(x), *(worlds.variables(seed) for seed in range(K)))
    data, num_rows = WORLD.data(), 10
    reports = ClientReturn(clients, jnp.ones(K, jnp.int32), clients.params)

    def loss(params, stats, rows):
        batch, mask = tree.gather(data.pool, rows)
        mean, _ = worlds.TASK.loss(params, stats, batch, mask, train)
        return mean * mask.sum().astype(mean.dtype) * NUM_GROUPS / num_rows

    def both(hyper):
        expected = fedvg_jax.validation_gradients(
            loss, clients.params, data.scoring, client_stats=clients.stats
        )
        rules = [
            signals.normed(
                signals.validation_gradient(worlds.TASK, train, size), lambda x: (x, norms.l1(x))
            )
            for size in sizes
        ]
        actual = [jax.vmap(signal, (None, 0, None))(hyper, reports, data) for signal in rules]
        return jax.tree.map(lambda x: (x, jax.vmap(norms.l1)(x)), expected), actual

    return worlds.jit(both)(worlds.hyper())


@pytest.mark.parametrize(("train", "sizes"), [(True, (1, 3, NUM_GROUPS + 3)), (False, (3,))])
def test_scoring_in_passes_of_any_size_equals_the_definition(x64, train, sizes):
    """The mean over D_val's 10 rows as a mean over groups of 4, 4, 2 and 0 rows: group v counts V n_v / 10."""
    expected, actual = scored(train, sizes)
    for of_size in actual:
        worlds.assert_close(of_size, expected, 1e-9)


@pytest.mark.parametrize(
    ("platform", "width", "groups"), [("cpu", 1, 4), ("cpu", 2**14, 2), ("gpu", 2**14, 4)]
)
def test_feature_maps_of_a_caller_s_task_leave_as_many_groups_in_a_pass_as_a_core_s_cache_holds(
    platform, width, groups
):
    """Maps [4, 2, 1, 2^14] of a group of 4 rows have 2^17 values, of which 2^18 fit; those of width 1 are the rows."""
    pool, table = jnp.ones((16, 2, 1, 1)), jnp.arange(16, dtype=jnp.int32).reshape(4, 4)

    def loss(params, stats, batch, mask, train):
        return (batch * params["w"][None, None, None]).sum(), stats

    client = ClientReturn(Variables({"w": jnp.ones(width)}, {}), jnp.int32(1), {})
    task = Task(lambda key: client.variables, loss, *[None] * 4)
    with hw.assumed(hw.Hardware(platform, platform, num_devices=1, cores=1, memory_bytes=None)):
        measure = signals.validation_gradient(task, True, 4)
        jaxpr = jax.make_jaxpr(measure)({}, client, Data(pool, table, table, table))
    assert [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"] == [
        4 // groups
    ]


def test_every_norm_is_zero_without_rows_to_score():
    """Hence uniform weights; D_val can come to this, as a last group of a single row is skipped in train mode."""
    data = WORLD.data()
    data = data._replace(scoring=jnp.full_like(data.scoring, -1))
    signal = signals.normed(signals.validation_gradient(worlds.TASK, True, 1), norms.l1)
    variables = worlds.variables()
    actual = worlds.jit(signal)(
        worlds.hyper(), ClientReturn(variables, jnp.int32(1), variables.params), data
    )
    assert all(leaf == 0 for leaf in jax.tree.leaves(actual))


# --- the Fisher view


NUM_CLIENTS, V, IN, OUT = 2, 7, 3, 4


def logits(params, x):
    return params["w"].T @ jnp.tanh(x) + params["b"]


def loss(params, example):
    return -jax.nn.log_softmax(logits(params, example["x"]))[example["y"]]


def clients():
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.normal(size=(NUM_CLIENTS, IN, OUT))),
        "b": jnp.asarray(rng.normal(size=(NUM_CLIENTS, OUT))),
    }


def examples():
    rng = np.random.default_rng(1)
    return {"x": jnp.asarray(rng.normal(size=(V, IN))), "y": jnp.asarray(rng.integers(0, OUT, V))}


def flat(params):
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(params)])


def scores(k):
    """[V, parameters] the gradient of every example of client k."""
    of_example = jax.vmap(lambda params, example: flat(jax.grad(loss)(params, example)), (None, 0))
    return worlds.jit(of_example)(tree.take(clients(), k), examples())


def test_the_trace_of_the_fisher_matrix_is_the_sum_of_the_joint_informations(x64):
    """For any number of gradients per pass. F = mean_i s_i s_i' is written out."""

    def joint_and_trace(clients, most):
        joint = fedvg_jax.joint_fisher(loss, clients, examples(), most=most)
        return joint, fedvg_jax.fisher_trace(joint)

    for joint, trace in worlds.jit(
        lambda clients: [joint_and_trace(clients, most) for most in (70, 2**20)]
    )(clients()):
        for k in range(NUM_CLIENTS):
            of_client = np.asarray(scores(k))
            matrix = of_client.T @ of_client / V
            np.testing.assert_allclose(trace[k], np.trace(matrix), rtol=1e-12)
            np.testing.assert_allclose(joint["b"][k], np.trace(matrix[:OUT, :OUT]), rtol=1e-12)


def test_the_sampled_joint_fisher_converges_to_the_fisher_information(x64):
    """Of the bias of a softmax, F = diag(p) - p p', of trace 1 - sum p^2; the mean of 4000 draws of a variable in
    [0, 2] is within 0.05 of it."""
    x, params = examples()["x"], clients()
    run = worlds.jit(
        lambda key: fedvg_jax.sampled_joint_fisher(logits, params, x, key, num_samples=4000 // V)
    )
    actual = run(jax.random.key(0, impl="rbg"))
    for k in range(NUM_CLIENTS):
        z = np.stack([params["w"][k].T @ np.tanh(row) + params["b"][k] for row in x])
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        np.testing.assert_allclose(actual["b"][k], (1 - (p**2).sum(1)).mean(), atol=0.05)


def test_the_fisher_signal_equals_joint_fisher(x64):
    """`signals.fisher`, of a round, under the L1 norm, for any number of gradients per pass; BatchNorm in evaluation
    mode."""
    model, data = worlds.variables(), WORLD.data()
    client = ClientReturn(model, jnp.int32(1), tree.zeros_like(model.params))

    def of_row(params, row):
        batch, mask = tree.gather(data.pool, row[None])
        return worlds.TASK.loss(params, model.stats, batch, mask, False)[0]

    one = jax.tree.map(lambda x: x[None], model.params)
    rules = [
        signals.normed(signals.fisher(worlds.TASK, most), norms.l1) for most in (1, 200, 2**26)
    ]
    joint = functools.partial(fedvg_jax.joint_fisher, of_row, one, jnp.asarray(WORLD.val))
    expected, actual = worlds.jit(lambda: (joint(), [rule({}, client, data) for rule in rules]))()
    for of_rule in actual:
        worlds.assert_close(jax.tree.map(lambda x: x[None], of_rule), expected, 1e-12)


def test_joint_fisher_is_differentiable(x64):
    """The loss w^2 x / 2 has the score w x, hence J = w^2 mean x^2, of slope 2 w mean x^2 = 10 w."""
    x = jnp.array([1.0, 3.0])

    def trace(w):
        return fisher.fisher_trace(
            fisher.joint_fisher(lambda p, x: p["w"] ** 2 * x / 2, {"w": w}, x)
        ).sum()

    np.testing.assert_allclose(jax.grad(trace)(jnp.array([2.0, -1.0])), [20.0, -10.0], rtol=1e-12)
