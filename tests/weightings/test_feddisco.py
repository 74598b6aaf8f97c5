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
    rule, model = fv.weightings.feddisco(), worlds.variables()
    hyper = worlds.hyper(**{f"feddisco.{name}": value for name, value in changes.items()})
    data = WORLD.data()._replace(described=Described((), jnp.asarray(counts)))
    clients = ClientReturn(
        *fv.tree.repeat((model, jnp.int32(0), model.params), len(counts)), None, jnp.asarray(counts)
    )
    clients = clients._replace(num_samples=jnp.asarray(counts.sum(1)))
    measured = jax.vmap(lambda client: rule.signal(hyper, client, data))(clients)
    view = ServerView(model, None, jnp.arange(len(counts)), data, jnp.asarray(participating))
    weights = rule.weigh(hyper, measured, view)
    first, *others = jax.tree.leaves(weights)
    assert all((other == first).all() for other in others)
    return np.asarray(first), np.asarray(rule.score(measured))


def expected_of(counts, participating, a, b):
    """The paper's equation, client by client."""
    distances = [np.sqrt(sum((own / own.sum() - 1 / 3) ** 2)) for own in counts]
    size = sum(own.sum() for own, is_in in zip(counts, participating, strict=True) if is_in)
    values = np.array([
        max(0.0, own.sum() / size - a * distance + b) if is_in else 0.0
        for own, distance, is_in in zip(counts, distances, participating, strict=True)
    ])  # fmt: skip
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
