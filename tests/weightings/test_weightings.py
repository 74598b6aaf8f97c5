"""Laws of the aggregation weights, over every weighting, norm and granularity."""

import functools
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax import config, resolve
from fedvg_jax.core import groups, norms, tree
from fedvg_jax.core.types import ClientReturn, ServerView, UsageError
from fedvg_jax.weightings import family

K = 5
WORLD = worlds.small()
CASES = [
    ("samples", "modelwise"),
    ("uniform", "modelwise"),
    *(("fedvg", granularity) for granularity in groups.BY_NAME),
    ("samples+fedvg", "layerwise"),
]
"""Granularity affects FedVG's weights only."""


@functools.cache
def make(name, granularity, algorithm="fedavg"):
    settings = replace(config.Config(), weighting=name, fedvg=dict(granularity=granularity))
    return resolve.method.make_weighting(settings, worlds.TASK, worlds.algorithm(algorithm))


def measured(rule):
    """Random positive numbers with the shapes of K clients' signals."""
    model = worlds.variables()
    rng = np.random.default_rng(0)
    client = ClientReturn(model, jnp.int32(1), model.params, described=jnp.ones(3, jnp.int32))
    shapes = jax.eval_shape(rule.signal, worlds.hyper(), client, WORLD.data())
    return jax.tree.map(lambda s: jnp.asarray(rng.uniform(0.1, 9, (K, *s.shape)), float), shapes)


@pytest.mark.parametrize("algorithm", config.ALGORITHMS)
def test_native_weights_are_uniform_for_scaffold_and_feddyn_and_samples_for_the_others(algorithm):
    """As in the algorithms' own papers."""
    rule = make("native", "modelwise", algorithm)
    client = ClientReturn(worlds.variables(), jnp.int32(3), worlds.variables().params)
    assert rule.signal({}, client, WORLD.data()) == (
        1 if algorithm in ("scaffold", "feddyn") else 3
    )


EXTREMES = [
    *([0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0], [1e-45, 0.0, 1e-40, 1.0, 1e30]),
    *(
        [1e-45] * 5,
        [1e-38] * 5,
        [3e38] * 5,
        [3e38, 1.0, 1e-45, 0.0, 1e-30],
        [1.0, 1.0, 1.0, 1.0, 1e-45],
    ),
]
"""Scores of five clients in single precision: zero, denormal, and so large that their sum overflows."""


def test_weights_of_extreme_scores_are_between_zero_and_one():
    """For every weighting, tensor and eps; equal clients have equal weights."""
    rules = [make(name, granularity) for name, granularity in CASES]
    forms = [jax.tree.structure(measured(rule)) for rule in rules]
    model = worlds.variables()
    view = ServerView(model, tree.repeat(model, K), jnp.arange(K), WORLD.data())

    @worlds.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def weights(scores, eps):
        hyper = worlds.hyper(**{"fedvg.eps": eps})
        actual = []
        for rule, form in zip(rules, forms, strict=True):
            signal = form.unflatten([scores] * form.num_leaves)
            actual.append(rule.weigh(hyper, signal, view))
        return jnp.stack(jax.tree.leaves(actual))

    actual = np.asarray(weights(jnp.float32(EXTREMES), jnp.float32([0.0, 1e-45, 1e-8])))
    assert (actual >= 0).all() and (actual <= 1).all()
    np.testing.assert_allclose(actual.sum(-1), 1, rtol=1e-6)
    equal = [len(set(scores)) == 1 for scores in EXTREMES]
    np.testing.assert_array_equal(np.ptp(actual[equal], -1), 0)


ALL_TENSORS = [name for name, entry in config.WEIGHTINGS.items() if not entry.granularity]


@pytest.mark.parametrize("name", ALL_TENSORS)
def test_a_weighting_without_a_granularity_gives_all_tensors_one_weight(name):
    """Differential privacy adds less noise for it."""
    rule = make(name, "layerwise")
    model = worlds.variables()
    clients = jax.tree.map(lambda x: jnp.stack([i * x for i in range(K)]), model)
    view = ServerView(model, clients, jnp.arange(K), WORLD.data())
    weights = worlds.jit(rule.weigh)(worlds.hyper(), measured(rule), view)
    assert np.ptp(jax.tree.leaves(weights), 0).max() == 0


def test_means_and_placebos_have_the_layers_of_their_weighting_of_norms():
    layers = make("fedvg", "modelwise").layers
    assert layers
    for name in ("samples+fedvg", "fedvg+samples", "permuted(samples+fedvg)", "generalised"):
        assert make(name, "modelwise").layers == layers
    assert not make("samples", "modelwise").layers


# --- inverse norms

NORMS = {
    "base": {"w": jnp.array([1.0, 3.0]), "b": jnp.array([3.0, 9.0])},
    "head": {"w": jnp.array([2.0, 2.0])},
}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("granularity", "block_of", "of_base", "of_head"),
    [
        # G = (1 + 3 + 2) / 3 = 2 and (3 + 9 + 2) / 3 = 14/3
        ("modelwise", None, [0.7, 0.3], [0.7, 0.3]),
        ("layerwise", None, [0.75, 0.25], [0.5, 0.5]),
        ("blockwise", None, [0.75, 0.25], [0.5, 0.5]),  # of base, G = 2 and 6
        ("blockwise", lambda path: "one", [0.7, 0.3], [0.7, 0.3]),
    ],
)
def test_weights_invert_the_mean_norm_of_each_group(granularity, block_of, of_base, of_head):
    weights = fv.inverse_norm_weights(NORMS, granularity, eps=0.0, block_of=block_of)
    expected = {"base": dict.fromkeys("wb", np.array(of_base)), "head": {"w": np.array(of_head)}}
    worlds.assert_close(weights, expected, 1e-6)


# --- aggregation


def test_aggregating_clients_equal_to_the_global_model_changes_no_bit():
    """Although float32 weights need not sum to one."""
    model = worlds.variables()
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape)), model)
    weights = jax.tree.map(lambda _: jnp.array([0.3, 0.3, 0.3]), model)
    chex.assert_trees_all_equal(fv.aggregate(model, stacked, weights), model)


# --- gradients of the aggregated model; test_differentiable.py has the comparison with central differences


def tensors(seed, *leading):
    draw = np.random.default_rng(seed).normal
    tensors = {"a": {"w": draw(size=(*leading, 3, 2))}, "b": draw(size=(*leading, 2))}
    return jax.tree.map(jnp.float32, tensors)


@worlds.jit
@functools.partial(jax.grad, argnums=(0, 1, 2, 3))
def gradients_of_every_aggregate(grads, clients, eps, generalised):
    """Sum over norms and granularities of a number of the aggregated model; one non-finite term makes it non-finite.

    Every norm with one granularity, and every granularity with one norm: granularities see norms as numbers. Then once
    the generalised weights, with respect to their parameters too.
    """
    counts = jnp.array([3, 1, 0])[: len(grads["b"])]
    pairs = [*((norm, "layerwise") for norm in norms.BY_NAME), *(("l2", g) for g in groups.BY_NAME)]
    of_norms = fv.gradient_norms(grads)
    every_weights = [fv.generalised_weights(of_norms, counts, eps=eps, **generalised)]
    for norm, granularity in pairs:
        of_norms = fv.gradient_norms(grads, norm)
        every_weights.append(fv.inverse_norm_weights(of_norms, granularity, eps))
    models = [fv.aggregate(tensors(0), clients, weights) for weights in every_weights]
    return sum(jnp.sin(x).sum() for x in jax.tree.leaves(models))


CORNERS = {
    "zero norms": jnp.zeros_like,
    "one zero norm": lambda x: x.at[0].set(0),
    "equal clients": lambda x: jnp.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_gradients_of_the_aggregate_are_finite_at_a_corner(corner):
    grads, clients = (jax.tree.map(CORNERS[corner], tensors(seed, 3)) for seed in (1, 2))
    generalised = {"exponent": 1.0, "temperature": 1.0, "mix": 0.5}
    for eps in (0.0, 1e-8):
        gradients = gradients_of_every_aggregate(grads, clients, eps, generalised)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("norm", norms.BY_NAME)
def test_the_gradient_of_a_norm_is_zero_at_zero(norm):
    assert not worlds.jit(jax.grad(norms.BY_NAME[norm]))(jnp.zeros((3, 2))).any()


# --- clients that are not finite


@pytest.mark.parametrize(("granularity", "bad"), [("modelwise", jnp.nan), ("layerwise", jnp.inf)])
def test_a_client_that_is_not_finite_has_weight_zero_and_the_others_keep_theirs(granularity, bad):
    norms = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.array([4.0, bad, 1.0])}
    rule = functools.partial(fv.inverse_norm_weights, granularity=granularity)
    weights, expected = (
        worlds.jit(rule)(of, eps=1e-3) for of in (norms, tree.take(norms, np.array([0, 2])))
    )
    for name, weight in weights.items():
        np.testing.assert_allclose(weight, [expected[name][0], 0.0, expected[name][1]], rtol=1e-6)
    assert np.isfinite(worlds.jit(jax.grad(lambda eps: rule(norms, eps=eps)["a"][0]))(1e-3))


@pytest.mark.parametrize("rule", [fv.inverse_norm_weights, family.generalised_weights])
def test_without_a_finite_client_weights_are_refused_and_traced_ones_are_zero(rule):
    norms = {"a": jnp.array([jnp.nan, jnp.inf])}
    with pytest.raises(UsageError, match="norms of all clients are NaN or infinite"):
        rule(norms)
    assert worlds.jit(rule)(norms)["a"].tolist() == [0.0, 0.0]
