"""The Fisher view: the trace is the sum of the joint informations, and none of it is the norm of the mean gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support import worlds

import fedvg_jax
from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import ClientReturn
from fedvg_jax.weightings import fisher, signals

K, V, IN, OUT = 2, 7, 3, 4
WORLD = worlds.small()


def logits(params, x):
    return params["w"].T @ jnp.tanh(x) + params["b"]


def loss(params, example):
    return -jax.nn.log_softmax(logits(params, example["x"]))[example["y"]]


def clients():
    rng = np.random.default_rng(0)
    return {"w": jnp.asarray(rng.normal(size=(K, IN, OUT))), "b": jnp.asarray(rng.normal(size=(K, OUT)))}


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

    for joint, trace in worlds.jit(lambda clients: [joint_and_trace(clients, most) for most in (70, 2**20)])(clients()):
        for k in range(K):
            of_client = np.asarray(scores(k))
            matrix = of_client.T @ of_client / V
            np.testing.assert_allclose(trace[k], np.trace(matrix), rtol=1e-12)
            np.testing.assert_allclose(joint["b"][k], np.trace(matrix[:OUT, :OUT]), rtol=1e-12)


def test_the_sampled_joint_fisher_converges_to_the_fisher_information(x64):
    """Of the bias of a softmax, F = diag(p) - p p', of trace 1 - sum p^2; the mean of 4000 draws of a variable in
    [0, 2] is within 0.05 of it."""
    x, params = examples()["x"], clients()
    run = worlds.jit(lambda key: fedvg_jax.sampled_joint_fisher(logits, params, x, key, num_samples=4000 // V))
    actual = run(jax.random.key(0, impl="rbg"))
    for k in range(K):
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
    rules = [signals.normed(signals.fisher(worlds.TASK, most), norms.l1) for most in (1, 200, 2**26)]
    joint = functools.partial(fedvg_jax.joint_fisher, of_row, one, jnp.asarray(WORLD.val))
    expected, actual = worlds.jit(lambda: (joint(), [rule({}, client, data) for rule in rules]))()
    for of_rule in actual:
        worlds.assert_close(jax.tree.map(lambda x: x[None], of_rule), expected, 1e-12)


def test_joint_fisher_is_differentiable(x64):
    """The loss w^2 x / 2 has the score w x, hence J = w^2 mean x^2, of slope 2 w mean x^2 = 10 w."""
    x = jnp.array([1.0, 3.0])

    def trace(w):
        return fisher.fisher_trace(fisher.joint_fisher(lambda p, x: p["w"] ** 2 * x / 2, {"w": w}, x)).sum()

    np.testing.assert_allclose(jax.grad(trace)(jnp.array([2.0, -1.0])), [20.0, -10.0], rtol=1e-12)
