"""What counts as a layer, which tensors count, and what their groups make of them."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax import algorithms, config, resolve
from fedvg_jax.core import groups, norms, tree
from fedvg_jax.core.types import ServerView
from fedvg_jax.weightings.fedvg import inverse_norm_weights

K = 4
WORLD = worlds.small()
PATHS = tree.paths(worlds.variables().params)


def make(**options):
    return resolve.method.make_weighting(
        replace(config.Config(), fedvg=dict(**options)), worlds.TASK, algorithms.fedavg()
    )


def tensors(seed=0):
    """Something like K clients' gradients."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: rng.normal(size=(K, *x.shape)).astype(x.dtype), worlds.variables().params
    )


@functools.cache
def measure(norm):
    return worlds.jit(lambda grads: jax.tree.map(jax.vmap(norms.BY_NAME[norm]), grads))


def measured(grads, norm="l1"):
    """In NumPy, so that tests compute with it without compiling anything."""
    return jax.tree.map(np.asarray, measure(norm)(grads))


def score(rule, measured_norms):
    return worlds.jit(rule.score)(measured_norms)


def weigh(rule, measured_norms, eps=0.0):
    @worlds.jit
    def weights_of(measured_norms, eps, model, data):
        view = ServerView(model, tree.repeat(model, K), jnp.arange(K), data)
        return rule.weigh({"fedvg.eps": eps}, measured_norms, view)

    weights = jax.tree.map(
        np.asarray,
        weights_of(measured_norms, jnp.asarray(eps, float), worlds.variables(), WORLD.data()),
    )
    return dict(zip(PATHS, jax.tree.leaves(weights.params), strict=True)), weights.stats


def inverse(g):
    return (1 / g) / (1 / g).sum()


def concatenated(grads, module):
    """[K, entries] of a module's tensors."""
    by_path = dict(zip(PATHS, jax.tree.leaves(grads), strict=True))
    return np.concatenate(
        [by_path[path].reshape(K, -1) for path in PATHS if path.startswith(module + "/")], 1
    )


# --- layers


@pytest.mark.parametrize("granularity", ["modelwise", "layerwise"])
def test_a_module_s_norm_equals_that_of_its_concatenated_tensors(x64, granularity):
    """Modelwise the mean over modules is inverted, layerwise each module's own norm, for kernel and bias alike."""
    grads = tensors()
    weights, _ = weigh(
        make(norm="l2", layer="module", granularity=granularity), measured(grads, "l2")
    )
    by_module = {
        m: np.linalg.norm(concatenated(grads, m), axis=1) for m in ("bn1", "classifier", "fc1")
    }
    overall = inverse(sum(by_module.values()) / 3)
    for path, weight in weights.items():
        expected = (
            overall if granularity == "modelwise" else inverse(by_module[groups.module_of(path)])
        )
        np.testing.assert_allclose(weight, expected, rtol=1e-12)


# --- which count


def test_only_tensors_that_match_the_expression_count(x64):
    """Modelwise the others take the client's weight all the same; layerwise and blockwise they are uniform."""
    measured_norms = measured(tensors())
    head = (measured_norms["classifier"]["kernel"] + measured_norms["classifier"]["bias"]) / 2
    for granularity in ("modelwise", "blockwise"):
        weights, _ = weigh(make(include="^classifier/", granularity=granularity), measured_norms)
        other = inverse(head) if granularity == "modelwise" else np.full(K, 1 / K)
        for path, w in weights.items():
            np.testing.assert_allclose(
                w, inverse(head) if path.startswith("classifier") else other, rtol=1e-12
            )
    weights, _ = weigh(make(include="kernel", granularity="layerwise"), measured_norms)
    np.testing.assert_allclose(
        weights["fc1/kernel"], inverse(measured_norms["fc1"]["kernel"]), rtol=1e-12
    )
    np.testing.assert_allclose(weights["fc1/bias"], np.full(K, 1 / K), rtol=1e-12)


def test_vectors_are_left_out_of_the_mean_of_spectral_norms(x64):
    measured_norms = measured(tensors(), "spectral")
    expected = (measured_norms["classifier"]["kernel"] + measured_norms["fc1"]["kernel"]) / 2
    np.testing.assert_allclose(score(make(norm="spectral"), measured_norms), expected, rtol=1e-12)
    weights, _ = weigh(make(norm="spectral", granularity="blockwise"), measured_norms)
    np.testing.assert_allclose(
        weights["bn1/scale"], inverse(measured_norms["fc1"]["kernel"]), rtol=1e-12
    )


def test_layerwise_a_vector_takes_the_weight_of_its_module_s_matrix(x64):
    measured_norms = measured(tensors(), "spectral")
    weights, _ = weigh(
        make(norm="spectral", granularity="layerwise", include="kernel|fc1/bias"), measured_norms
    )
    np.testing.assert_allclose(
        weights["fc1/bias"], inverse(measured_norms["fc1"]["kernel"]), rtol=1e-12
    )
    np.testing.assert_allclose(weights["bn1/scale"], np.full(K, 1 / K), rtol=1e-12)


# --- statistics, noise, shares


def test_a_tensor_that_holds_rounding_noise_takes_uniform_weights():
    measured_norms = measured(tensors())
    measured_norms = jax.tree.map(lambda x: x.astype(np.float32), measured_norms)
    measured_norms["fc1"]["bias"] = np.array([1e-9, 3e-9, 0.0, 2e-8], np.float32)
    weights, _ = weigh(make(granularity="layerwise"), measured_norms, eps=1e-8)
    np.testing.assert_allclose(weights["fc1/bias"], np.full(K, 1 / K), rtol=1e-6)
    assert np.ptp(weights["fc1/kernel"]) > 0.01
    modelwise, _ = weigh(make(), measured_norms, eps=1e-8)
    assert np.ptp(modelwise["fc1/bias"]) > 0.01


def test_noise_has_zero_gradient_without_nan():
    def f(bias):
        weights = inverse_norm_weights({"a": jnp.ones(3), "b": bias}, "layerwise", eps=0.0)
        return weights["b"][0]

    gradient = worlds.jit(jax.grad(f))
    assert not gradient(jnp.array([0.0, 1e-9, 2e-9])).any()
    assert gradient(jnp.array([0.1, 0.2, 0.3])).all()


@pytest.mark.parametrize("options", [{"layer": "module"}, {"norm": "spectral"}], ids=str)
def test_the_layers_shares_of_a_client_s_norm_sum_to_one_and_have_names(x64, options):
    rule = make(**options)
    measured_norms = measured(tensors(), options.get("norm", "l1"))
    shares = worlds.jit(rule.detail)(measured_norms)["layer_shares"]
    assert shares.shape == (K, len(rule.layers))
    np.testing.assert_allclose(shares.sum(1), np.ones(K), rtol=1e-12)
