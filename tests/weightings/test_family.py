"""The generalised inverse-norm family: special cases, such as FedVG, and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import worlds

from fedvg_jax.core import groups, tree
from fedvg_jax.core.types import ServerView
from fedvg_jax.weightings import family

K = 4
RNG = np.random.default_rng(0)
WORLD = worlds.small()


def norms():
    w, b, head = jnp.asarray(np.random.default_rng(1).uniform(0.5, 4, (3, K)))
    return {"base": {"w": w, "b": b}, "head": {"w": head}}


SAMPLES = np.array([3, 1, 0, 12])


@pytest.mark.parametrize("granularity", groups.BY_NAME)
def test_the_generalised_weighting_with_defaults_equals_fedvg(x64, granularity):
    """Over the participating clients, with running statistics."""

    def weights(name, signals):
        algorithm = worlds.algorithm("fedavg")
        rule = worlds.weighting(name, algorithm, worlds.TASK, granularity=granularity)
        return rule.weigh(worlds.hyper(), signals, view)

    model = worlds.variables()
    measured = jax.tree.map(lambda p: jnp.asarray(RNG.uniform(0.1, 9, K)), model.params)
    present = jnp.array([True, False, True, True])
    view = ServerView(model, tree.repeat(model, K), jnp.arange(K), WORLD.data(), present)
    actual = weights("generalised", (measured, jnp.asarray(SAMPLES, float)))
    worlds.assert_close(actual, weights("fedvg", measured), 1e-12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exponent": 0.0}, np.full(K, 1 / K)),
        ({"mix": 1.0}, SAMPLES / SAMPLES.sum()),
        ({"temperature": 1e9}, np.full(K, 1 / K)),
        ({"temperature": 1e-3}, np.eye(K)[2]),
        (
            {"exponent": 2.0, "eps": 0.0},
            np.array([1 / 16, 1 / 4, 1, 1 / 9]) / (1 / 16 + 1 / 4 + 1 + 1 / 9),
        ),
        ({"exponent": -1.0, "eps": 0.0}, np.array([4, 2, 1, 3]) / 10),
    ],
    ids=str,
)
def test_each_parameter_changes_the_weights_as_documented(x64, changes, expected):
    """Of norms 4, 2, 1 and 3."""
    weights = family.generalised_weights({"w": jnp.array([4.0, 2.0, 1.0, 3.0])}, SAMPLES, **changes)
    np.testing.assert_allclose(weights["w"], expected, atol=1e-8)


def test_a_multiplier_of_zero_excludes_a_tensor(x64):
    factors = {"base": {"w": 1.0, "b": 0.0}, "head": {"w": 1.0}}
    mean = norms()["base"]["w"] + norms()["head"]["w"]
    expected = (1 / mean) / (1 / mean).sum()
    actual = family.generalised_weights(norms(), multipliers=factors, eps=0.0)
    worlds.assert_close(actual, jax.tree.map(lambda _: expected, norms()), 1e-12)


def parameters():
    multipliers = jax.tree.map(lambda x: 1.5 - x[0] / 9, norms())
    scalars = {"exponent": 1.3, "temperature": 0.8, "eps": 0.05, "mix": 0.2}
    return scalars | {"multipliers": multipliers}


def test_gradients_by_every_parameter_equal_central_differences(x64):
    """Along one direction. A group's mean norm is a number, whatever the granularity."""
    at, unravel = ravel_pytree((norms(), parameters()))
    rng = np.random.default_rng(2)
    step = 1e-6
    direction = rng.normal(size=at.shape)
    factors = rng.normal(size=3 * K)

    @worlds.jit
    @jax.value_and_grad
    def number(at):
        norms, parameters = unravel(at)
        weights, _ = ravel_pytree(family.generalised_weights(norms, SAMPLES, **parameters))
        return jnp.sin(weights) @ factors

    (_, gradient), (above, _), (below, _) = (number(at + s * step * direction) for s in (0, 1, -1))
    np.testing.assert_allclose(gradient @ direction, (above - below) / (2 * step), rtol=1e-6)


def test_a_large_exponent_gives_all_weight_to_one_client():
    """To the smallest norm where it is positive, to the largest where it is negative; with finite gradients, also
    beside a dropped client."""
    norms = jnp.float32([10.0, 1.0, 1e30, 100.0])
    present = jnp.array([True, True, False, True])

    @worlds.jit
    def weights_and_slope(norms, exponent):
        def weights(norms, exponent):
            rule = family.make_weights_of_mean(exponent, 1.0, 1e-8, 0.0, jnp.ones(K))
            return rule(norms, present)

        return weights(norms, exponent), jax.jacrev(weights, (0, 1))(norms, exponent)

    for exponent in (-1e4, -200.0, 200.0, 1e4):
        weights, jacobians = weights_and_slope(norms, jnp.float32(exponent))
        np.testing.assert_allclose(weights, np.eye(K)[1 if exponent > 0 else 3], atol=1e-6)
        assert all(np.isfinite(slope).all() for slope in jacobians)
