"""Rules of averaging: each against NumPy over the clients that are there, and against one absurd client."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax import config, resolve
from fedvg_jax.core import tree
from fedvg_jax.core.types import Variables
from fedvg_jax.engine import robust
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.weightings import basic

K, NUM_BAD, NUM_KEPT = 9, 1, 3
RULES = {
    "mean": robust.weighted_mean, "median": robust.median, "trimmed_mean": robust.trimmed_mean(0.3),
    "krum": robust.krum(NUM_BAD, NUM_KEPT), "clipped_mean": robust.clipped_mean("clip_norm"),
}  # fmt: skip
DROPPED = {"all there": [], "two dropped": [0, 7], "one there": [0, 1, 2, 3, 5, 6, 7, 8]}


def view():
    """A global model of two tensors and a statistic, and K clients around it."""
    rng = np.random.default_rng(0)
    model = Variables(
        {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)}, {"mean": rng.normal(size=2)}
    )
    clients = jax.tree.map(lambda x: x[None] + rng.normal(size=(K, *x.shape)), model)
    return jax.tree.map(jnp.asarray, (model, clients))


_renormalised = worlds.jit(basic.renormalise_over_participating)


def weights_of(model, dropped=()):
    """Unequal weights, one per tensor and client; 0 for those that are dropped."""
    participating = jnp.asarray(~np.isin(np.arange(K), dropped))
    rng = np.random.default_rng(1)
    raw = jax.tree.map(lambda _: jnp.asarray(rng.uniform(0.5, 2, K)), model)
    return _renormalised(participating, jax.tree.map(lambda w: w / w.sum(), raw))


def joined(name, model, clients, weights):
    return worlds.jit(RULES[name])(worlds.hyper(clip_norm=2.0), model, clients, weights)


def flat(clients):
    """Trained tensors as one matrix [K, size]."""
    return np.concatenate(
        [np.asarray(x).reshape(K, -1) for x in jax.tree.leaves(clients.params)], 1
    )


# --- NumPy, over the clients that are there


def numpy_median(model, clients, weights):
    return jax.tree.map(
        lambda c, w: np.median(np.asarray(c)[np.asarray(w) > 0], 0), clients, weights
    )


def numpy_trimmed_mean(model, clients, weights):
    def one(c, w):
        there = np.sort(np.asarray(c)[np.asarray(w) > 0], 0)
        cut = len(there) * 3 // 10
        return there[cut : len(there) - cut].mean(0)

    return jax.tree.map(one, clients, weights)


def numpy_krum(model, clients, weights):
    there = np.flatnonzero(np.asarray(weights.params["b"]) > 0)
    points = flat(clients)[there]
    num_near = max(len(there) - NUM_BAD - 2, 1)
    squared = ((points[:, None] - points[None]) ** 2).sum(-1)
    scores = [np.sort(np.delete(row, i))[:num_near].sum() for i, row in enumerate(squared)]
    kept = there[np.argsort(scores)[:NUM_KEPT]]
    return jax.tree.map(lambda c: np.asarray(c)[kept].mean(0), clients)


def numpy_mean(model, clients, weights, factors=1):
    def one(x, c, w):
        x, c, w = map(np.asarray, (x, c, w))
        return x - np.einsum("k,k...->...", w * factors, x - c)

    return jax.tree.map(one, model, clients, weights)


def numpy_clipped_mean(model, clients, weights):
    updates = flat(tree.sub(tree.repeat(model, K), clients))
    factors = np.minimum(1, 2.0 / np.linalg.norm(updates, axis=1))
    mean, clipped = (numpy_mean(model, clients, weights, f) for f in (1, factors))
    return clipped._replace(stats=mean.stats)


NUMPY = {
    "mean": numpy_mean, "median": numpy_median, "trimmed_mean": numpy_trimmed_mean, "krum": numpy_krum,
    "clipped_mean": numpy_clipped_mean,
}  # fmt: skip


@pytest.mark.parametrize("dropped", DROPPED.values(), ids=DROPPED)
@pytest.mark.parametrize("name", NUMPY)
def test_a_rule_equals_numpy_on_the_present_clients(x64, name, dropped):
    """Those of weight 0 may have diverged; the round replaces their models for the mean, which reads them."""
    model, clients = view()
    weights = weights_of(model, dropped)
    expected = NUMPY[name](model, clients, weights)
    if name != "mean":
        clients = jax.tree.map(lambda x: x.at[jnp.array(dropped, int)].set(jnp.nan), clients)
    worlds.assert_close(joined(name, model, clients, weights), expected, 1e-12)


@pytest.mark.parametrize("name", RULES)
def test_without_present_clients_the_model_is_unchanged(x64, name):
    model, clients = view()
    joined_model = joined(name, model, clients, weights_of(model, range(K)))
    jax.tree.map(np.testing.assert_array_equal, joined_model, model)


def test_the_trim_is_the_floor_of_the_exact_product_and_keeps_a_client():
    for hundredths in range(50):
        cuts = robust._cuts(hundredths / 100, 200)
        assert cuts.tolist() == [n * hundredths // 100 for n in range(201)]
    assert all(2 * robust._cuts(math.nextafter(0.5, 0), 100)[n] < n for n in range(1, 101))


@pytest.mark.parametrize("name", RULES)
def test_gradients_of_a_rule_are_finite_where_clients_are_absent(name):
    """A dropped client's model is theta_g: its update is 0, where a root has no derivative."""
    model, clients = jax.tree.map(lambda x: x.astype(jnp.float32), view())

    @worlds.jit
    def gradients_of(hyper, clients, weights):
        def number(hyper, clients):
            return sum(
                x.sum() for x in jax.tree.leaves(RULES[name](hyper, model, clients, weights))
            )

        return jax.grad(number, (0, 1))(hyper, clients)

    for dropped in ([0, 7], range(K)):
        at = tree.where(jnp.asarray(np.isin(np.arange(K), dropped)), tree.repeat(model, K), clients)
        weights = jax.tree.map(lambda x: x.astype(jnp.float32), weights_of(model, dropped))
        by_argument = gradients_of(worlds.hyper(clip_norm=2.0), at, weights)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(by_argument))


# --- settings


def test_settings_reach_the_round():
    changes = {"attack": "scaling:3", "robust": "clipped_mean:2"}
    settings = config.apply(config.Config(), changes, "test")
    hyper = resolve.method.scalars(settings)
    method = resolve.method.make_method(settings, Custom())
    assert (float(hyper["clip_norm"]), float(hyper["attack_scale"])) == (2, 3)
    theta, *others = (
        Variables({"w": x}, {}) for x in (jnp.zeros(()), jnp.full(20, 5.0), jnp.full(20, 0.05))
    )
    assert method.aggregate(hyper, theta, *others).params["w"] == pytest.approx(2)
    ids = jnp.arange(20, dtype=jnp.int32)
    returned = method.disturb(hyper, jax.random.key(7), ids, theta, others[0]).params["w"]
    corrupt = resolve.data.corrupt_clients(settings)
    np.testing.assert_array_equal(returned, np.where(np.isin(np.arange(20), corrupt), 15, 5))
