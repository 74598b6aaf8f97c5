"""Corrupt clients return what the formulas say, and honest ones what they trained."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core.types import Variables
from fedvg_jax.engine import attacks

N = 12
CORRUPT = np.array([2, 3, 11])
IDS = jnp.array([5, 3, 0, 11, 7, 2], jnp.int32)
BAD = [1, 3, 5]  # where the corrupt ones are in this cohort
KEY = jax.random.key(3)
ATTACKS = [name for name in attacks.BY_NAME if name != "none"]


def view(shape=(4, 3)):
    rng = np.random.default_rng(0)
    model = Variables({"w": rng.normal(size=shape), "b": np.ones(3)}, {"var": np.ones(2)})
    clients = jax.tree.map(lambda x: x[None] + rng.normal(size=(len(IDS), *x.shape)), model)
    return jax.tree.map(jnp.asarray, (model, clients))


@functools.cache
def _jitted(kind):
    return worlds.jit(attacks.disturbance(attacks.BY_NAME[kind].made("attack_scale"), CORRUPT, N))


def disturbed(kind, model, clients, scale=1.5):
    return _jitted(kind)(worlds.hyper(attack_scale=scale), KEY, IDS, model, clients)


@pytest.mark.parametrize("kind", ATTACKS)
def test_honest_clients_and_statistics_are_unchanged(kind):
    model, clients = view()
    sent = disturbed(kind, model, clients)
    np.testing.assert_array_equal(sent.stats["var"], clients.stats["var"])
    for name, before in clients.params.items():
        is_changed = np.asarray(before != sent.params[name]).reshape(len(IDS), -1)
        assert (is_changed == np.isin(IDS, CORRUPT)[:, None]).all()


@pytest.mark.parametrize(("kind", "c"), [("sign_flip", -1.5), ("scaling", 1.5)])
def test_a_corrupt_client_returns_theta_minus_c_times_its_update(x64, kind, c):
    model, clients = view()
    sent = disturbed(kind, model, clients)
    model, clients, sent = jax.tree.map(np.asarray, (model.params, clients.params, sent.params))
    for name, theta in model.items():
        expected = theta - c * (theta - clients[name][BAD])
        np.testing.assert_allclose(sent[name][BAD], expected, rtol=0, atol=1e-12)


def test_noise_has_the_norm_of_the_update_and_is_independent_of_it(x64):
    """Of n normal numbers the mean of squares is within 5 sqrt(2 / n) of the variance, but for once in a million; so is
    the cosine of two independent directions within 5 / sqrt(n) of 0."""
    model, clients = view((500, 40))
    sent = disturbed("noise", model, clients, scale=0.5)
    n = 20_003

    def update(variables, k):
        parts = jax.tree.map(
            lambda theta, c: np.asarray(theta - c[k]).ravel(), model.params, variables.params
        )
        return np.concatenate(jax.tree.leaves(parts))

    updates = [update(sent, k) for k in BAD]
    for k, noise in zip(BAD, updates, strict=True):
        honest = update(clients, k)
        assert abs((noise @ noise) / (0.25 * honest @ honest) - 1) < 5 * math.sqrt(2 / n)
        assert abs(noise @ honest) < 5 / math.sqrt(n) * np.linalg.norm(noise) * np.linalg.norm(
            honest
        )


# --- who


def test_corrupt_clients_depend_on_the_seed_alone():
    drawn = [attacks.corrupt_clients(seed, 20, 4).tolist() for seed in range(50)]
    assert drawn == [attacks.corrupt_clients(seed, 20, 4).tolist() for seed in range(50)]
    assert all(len(set(ids)) == 4 and ids == sorted(ids) for ids in drawn)
    # 200 seats over 20 clients: 10 each, with a binomial deviation of sqrt(50 x 0.2 x 0.8) = 2.8
    assert np.abs(np.bincount(np.concatenate(drawn), minlength=20) - 10).max() < 5 * 2.8
