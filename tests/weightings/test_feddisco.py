"""FedDisco against its equation in NumPy, and where it equals FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax.core.types import ClientReturn, Described, ServerView

WORLD = worlds.small()
COUNTS = np.array([[8, 1, 0], [2, 2, 2], [0, 0, 30], [3, 0, 1]])
SAMPLES = COUNTS.sum(1)
EVERYONE = np.ones(4, bool)


def weights_of(counts=COUNTS, participating=EVERYONE, **changes):
    """Returns the weights of the cohort and the scores; `changes` are a and b."""
    rule = fv.weightings.feddisco()
    model = worlds.variables()
    hyper = worlds.hyper(**{f"feddisco.{name}": value for name, value in changes.items()})
    data = WORLD.data()._replace(described=Described((), jnp.asarray(counts)))
    clients = fv.tree.repeat(ClientReturn(model, jnp.int32(0), model.params), len(counts))
    clients = clients._replace(
        num_samples=jnp.asarray(counts.sum(1)), described=jnp.asarray(counts)
    )
    measured = jax.vmap(lambda client: rule.signal(hyper, client, data))(clients)
    view = ServerView(model, None, jnp.arange(len(counts)), data, jnp.asarray(participating))
    weights = rule.weigh(hyper, measured, view)
    by_tensor = np.stack(jax.tree.leaves(weights))
    assert np.ptp(by_tensor, 0).max() == 0
    return by_tensor[0], np.asarray(rule.score(measured))


def expected_of(counts, participating, a, b):
    """The paper's equation, client by client."""
    distances = np.zeros(len(counts))
    values = np.zeros(len(counts))
    for k, own in enumerate(counts):
        distances[k] = np.sqrt(sum((own / own.sum() - 1 / 3) ** 2))
        if participating[k]:
            share = own.sum() / counts[participating].sum()
            values[k] = max(0.0, share - a * distances[k] + b)
    return values / values.sum(), distances


@pytest.mark.quick
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.2, 0.0), (1.0, 0.4)])
def test_weights_equal_the_equation_in_numpy(x64, a, b):
    for participating in (EVERYONE, np.array([True, False, True, True])):
        weights, scores = weights_of(participating=participating, a=a, b=b)
        expected, distances = expected_of(COUNTS, participating, a, b)
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(scores, distances, rtol=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("a", "b"), [(0.0, 0.0), (100.0, -1.0)], ids=["a = b = 0", "no positive value"]
)
def test_weights_are_those_of_samples(x64, a, b):
    weights, _ = weights_of(a=a, b=b)
    np.testing.assert_allclose(weights, SAMPLES / SAMPLES.sum(), rtol=1e-12)


def test_a_client_without_rows_has_a_finite_weight():
    weights, scores = weights_of(np.array([[4, 4, 4], [0, 0, 0], [1, 0, 0]]), EVERYONE[:3])
    assert np.isfinite(weights).all() and np.isfinite(scores).all()
