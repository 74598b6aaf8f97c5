"""The rules FedVG is measured against, and the other signals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from support import worlds

from fedvg_jax import config, resolve
from fedvg_jax.core import tree
from fedvg_jax.core.types import ClientReturn, ServerView
from fedvg_jax.engine import evaluate
from fedvg_jax.weightings import baselines, signals
from fedvg_jax.weightings.aggregation import aggregate

K = 4
WORLD = worlds.small()
ALL = (
    "inverse_samples", "val_loss", "val_accuracy", "fltrust", "fitted", "permuted(fedvg)", "fedvg",
)  # fmt: skip
SAMPLES = np.array([3, 11, 0, 6])
SHUFFLE = np.array([2, 0, 3, 1])


def make(name, **options):
    settings = replace(config.Config(), weighting=name, fedvg=dict(**options))
    return resolve.method.make_weighting(settings, worlds.TASK, worlds.algorithm("fedavg"))


def clients_of():
    """Stacked models, each at a different distance from the global one."""
    model = worlds.variables()
    drawn = [worlds.variables(10 + k) for k in range(K)]
    return jax.tree.map(
        lambda x, *others: x[None] + 0.4 * (jnp.stack(others) - x[None]), model, *drawn
    )


def returned(samples=SAMPLES, present=True, clients=None):
    clients = clients or clients_of()
    model = worlds.variables()
    deltas = jax.tree.map(lambda p, c: p[None] - c, model.params, clients.params)
    reports = ClientReturn(clients, jnp.asarray(samples, jnp.int32), deltas)
    present = jnp.broadcast_to(jnp.asarray(present), (K,))
    return reports, ServerView(model, clients, jnp.asarray(SHUFFLE), WORLD.data(), present)


@worlds.jit
def all_weights(reports, view):
    """All weightings in one program: name -> (weights [K], score [K])."""

    def one(name):
        rule = make(name)
        measured = jax.vmap(lambda client: rule.signal(worlds.hyper(), client, view.data))(reports)
        weights = rule.weigh(worlds.hyper(), measured, view)
        return weights, rule.score(measured)

    return {name: one(name) for name in ALL}


def weights_of(*args, **kwargs):
    """Name -> [K]; these weightings have one weight for all tensors."""
    by_rule = all_weights(*returned(*args, **kwargs))
    for weights, _ in by_rule.values():
        for leaf in jax.tree.leaves(weights):
            np.testing.assert_array_equal(leaf, jax.tree.leaves(weights)[0])
    return {name: np.asarray(jax.tree.leaves(weights)[0]) for name, (weights, _) in by_rule.items()}


@worlds.jit
def loss_of_average(view, weights):
    """Returns the loss on D_val of the clients' average under `weights`."""
    variables = aggregate(view.variables, view.clients, weights)
    client = ClientReturn(variables, jnp.int32(1), variables.params)
    return signals.validation_loss(worlds.TASK)({}, client, view.data)


# --- laws


def test_weights_are_a_distribution_and_not_uniform(x64):
    for name, weights in weights_of().items():
        assert (weights >= 0).all() and np.ptp(weights) > 0.01, name
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)


def test_absent_clients_have_weight_zero_and_the_others_keep_their_ratios(x64):
    present = np.array([True, False, True, True])
    before, after = weights_of(), weights_of(present=present)
    for name in ALL:
        assert after[name][1] == 0
        np.testing.assert_allclose(after[name].sum(), 1, rtol=1e-12)
        if name not in ("fitted", "permuted(fedvg)"):
            kept = np.where(present, before[name], 0)
            np.testing.assert_allclose(after[name], kept / kept.sum(), rtol=1e-9, err_msg=name)


def test_clients_with_zero_updates_have_finite_weights(x64):
    still = tree.repeat(worlds.variables(), K)
    for weights in weights_of(samples=K * [0], clients=still).values():
        np.testing.assert_allclose(weights, np.full(K, 1 / K), rtol=1e-5)


# --- each rule


def test_the_permuted_control_shuffles_among_present_clients(x64):
    weights = weights_of(present=np.array([True, True, False, True]))
    placebo = weights["permuted(fedvg)"]
    rule = weights["fedvg"]
    assert sorted(placebo) == sorted(rule) and placebo[2] == 0 and (placebo != rule).any()


def test_inverse_samples_weights_are_proportional_to_one_over_the_rows_and_zero_without_rows(x64):
    raw = np.array([1 / 3, 1 / 11, 0, 1 / 6])
    np.testing.assert_allclose(weights_of()["inverse_samples"], raw / raw.sum(), rtol=1e-12)


def test_validation_loss_and_accuracy_equal_those_of_the_evaluation(x64):
    reports, view = returned()
    program = worlds.jit(evaluate.make_evaluate(worlds.TASK))
    sums = [program(tree.take(view.clients, k), view.data.pool, view.data.val) for k in range(K)]
    metrics = [worlds.TASK.metrics(jax.device_get(s)) for s in sums]
    loss = np.array([of_client["loss"] for of_client in metrics])
    accuracy = np.array([of_client["accuracy"] for of_client in metrics])
    by_rule = all_weights(reports, view)
    inverse = 1 / (loss + worlds.HYPER["fedvg.eps"])
    for name, scores, raw in (("val_loss", loss, inverse), ("val_accuracy", accuracy, accuracy)):
        weights, measured = by_rule[name]
        np.testing.assert_allclose(measured, scores, rtol=1e-12)
        np.testing.assert_allclose(jax.tree.leaves(weights)[0], raw / raw.sum(), rtol=1e-12)


def test_fltrust_weighs_by_the_cosine_with_the_server_s_own_update_over_the_length(x64):
    """The server trains on the 10 rows in batches of 4, 4 and 2; the fourth group is empty.

    A client whose update is opposed to the server's has weight 0.
    """
    trusted = int(np.argmax(weights_of()["fltrust"]))
    model, clients = worlds.variables(), clients_of()
    opposed = jax.tree.map(lambda p, c: c.at[trusted].set(2 * p - c[trusted]), model, clients)
    reports, view = returned(clients=opposed)
    params, stats = model

    gradient = worlds.jit(jax.grad(worlds.TASK.loss, has_aux=True), static_argnums=4)
    for rows in view.data.scoring[:3]:
        grads, stats = gradient(params, stats, *tree.gather(view.data.pool, rows), True)
        params = tree.sub(params, tree.scale(worlds.HYPER["lr"], grads))
    own, _ = ravel_pytree(tree.sub(model.params, params))
    deltas = np.stack([ravel_pytree(tree.take(reports.delta, k))[0] for k in range(K)])
    lengths = np.linalg.norm(deltas, axis=1)
    trust = np.maximum(deltas @ own / lengths / np.linalg.norm(own), 0)
    actual = weights_of(clients=opposed)["fltrust"]
    assert actual[trusted] == 0 and (actual > 0).sum() > 1
    np.testing.assert_allclose(actual, trust / lengths / (trust / lengths).sum(), rtol=1e-9)


def test_a_step_of_fitting_multiplies_by_the_exponential_of_the_gradient(x64):
    """The gradient by central differences of the loss, running statistics averaged too."""
    _, view = returned()

    def loss(s):
        weights = jax.tree.map(lambda _: jnp.asarray(s), view.variables)
        return float(loss_of_average(view, weights))

    start = np.full(K, 1 / K)
    step = 1e-5 * np.eye(K)
    slope = np.array([(loss(start + e) - loss(start - e)) / 2e-5 for e in step])
    expected = np.exp(-0.5 * slope) / np.exp(-0.5 * slope).sum()
    fit = worlds.jit(baselines.fitted(worlds.TASK, num_steps=1).weigh)
    weights = fit({"fitted.rate": 0.5}, jnp.ones(K), view)
    np.testing.assert_allclose(jax.tree.leaves(weights)[0], expected, rtol=1e-8)


# --- signals


def test_delta_is_the_l1_norm_of_the_client_s_update(x64):
    """Whether it is named as the norm or as the signal."""
    reports, view = returned()
    expected = jax.tree.map(lambda x: np.abs(x).reshape(K, -1).sum(1), reports.delta)
    for options in ({"norm": "delta"}, {"signal": "delta"}):
        signal = make("fedvg", **options).signal
        measured = jax.vmap(lambda client, s=signal: s({}, client, view.data))(reports)
        worlds.assert_close(measured, expected, 1e-12)
