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
UNIFORM = np.full(K, 1 / K)


def make(**options):
    return resolve.method.make_weighting(
        replace(config.Config(), fedvg=dict(**options)), worlds.TASK, algorithms.fedavg()
    )


def tensors():
    """Something like K clients' gradients."""
    rng = np.random.default_rng(0)
    model = worlds.variables()
    return jax.tree.map(lambda x: rng.normal(size=(K, *x.shape)).astype(x.dtype), model.params)


@functools.cache
def measure(norm):
    return worlds.jit(lambda grads: jax.tree.map(jax.vmap(norms.BY_NAME[norm]), grads))


def measured(norm="l1"):
    """The norms of the gradients, in NumPy, so that tests compute with them without compiling anything."""
    return jax.tree.map(np.asarray, measure(norm)(tensors()))


def weigh(rule, measured_norms, eps=0.0):
    """Weights of the parameters, by path."""

    @worlds.jit
    def weights_of(measured_norms, eps, model):
        view = ServerView(model, tree.repeat(model, K), jnp.arange(K), WORLD.data())
        return rule.weigh({"fedvg.eps": eps}, measured_norms, view)

    weights = weights_of(measured_norms, jnp.asarray(eps, float), worlds.variables())
    return tree.by_path(weights.params)


def inverse(g):
    return (1 / g) / (1 / g).sum()


# --- layers


@pytest.mark.parametrize("granularity", ["modelwise", "layerwise"])
def test_a_module_s_norm_equals_that_of_its_concatenated_tensors(x64, granularity):
    """Modelwise the mean over modules is inverted, layerwise each module's own norm, for kernel and bias alike."""
    weights = weigh(make(norm="l2", layer="module", granularity=granularity), measured("l2"))
    by_module = {}
    for module, leaves in tensors().items():
        entries = [leaf.reshape(K, -1) for leaf in leaves.values()]
        by_module[module] = np.linalg.norm(np.concatenate(entries, 1), axis=1)
    if granularity == "modelwise":
        by_module = dict.fromkeys(by_module, sum(by_module.values()) / 3)
    for path, weight in weights.items():
        expected = inverse(by_module[groups.module_of(path)])
        np.testing.assert_allclose(weight, expected, rtol=1e-12)


# --- which count


def test_only_tensors_that_match_the_expression_count(x64):
    """Modelwise the others take the client's weight all the same; layerwise and blockwise they are uniform."""
    measured_norms = measured()
    head = inverse(sum(measured_norms["classifier"].values()) / 2)
    for granularity, other in (("modelwise", head), ("blockwise", UNIFORM)):
        weights = weigh(make(include="^classifier/", granularity=granularity), measured_norms)
        for path, weight in weights.items():
            expected = head if path.startswith("classifier") else other
            np.testing.assert_allclose(weight, expected, rtol=1e-12)
    weights = weigh(make(include="kernel", granularity="layerwise"), measured_norms)
    expected = inverse(measured_norms["fc1"]["kernel"])
    np.testing.assert_allclose(weights["fc1/kernel"], expected, rtol=1e-12)
    np.testing.assert_allclose(weights["fc1/bias"], UNIFORM, rtol=1e-12)


def test_vectors_are_left_out_of_the_mean_of_spectral_norms(x64):
    measured_norms = measured("spectral")
    of_head, of_base = (measured_norms[module]["kernel"] for module in ("classifier", "fc1"))
    scores = worlds.jit(make(norm="spectral").score)(measured_norms)
    np.testing.assert_allclose(scores, (of_head + of_base) / 2, rtol=1e-12)
    weights = weigh(make(norm="spectral", granularity="blockwise"), measured_norms)
    np.testing.assert_allclose(weights["bn1/scale"], inverse(of_base), rtol=1e-12)


def test_layerwise_a_vector_takes_the_weight_of_its_module_s_matrix(x64):
    measured_norms = measured("spectral")
    rule = make(norm="spectral", granularity="layerwise", include="kernel|fc1/bias")
    weights = weigh(rule, measured_norms)
    expected = inverse(measured_norms["fc1"]["kernel"])
    np.testing.assert_allclose(weights["fc1/bias"], expected, rtol=1e-12)
    np.testing.assert_allclose(weights["bn1/scale"], UNIFORM, rtol=1e-12)


# --- statistics, noise, shares


def test_a_tensor_that_holds_rounding_noise_takes_uniform_weights():
    measured_norms = measured()
    measured_norms["fc1"]["bias"] = np.array([1e-9, 3e-9, 0.0, 2e-8], np.float32)
    weights = weigh(make(granularity="layerwise"), measured_norms, eps=1e-8)
    np.testing.assert_allclose(weights["fc1/bias"], UNIFORM, rtol=1e-6)
    assert np.ptp(weights["fc1/kernel"]) > 0.01
    modelwise = weigh(make(), measured_norms, eps=1e-8)
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
    measured_norms = measured(options.get("norm", "l1"))
    shares = worlds.jit(rule.detail)(measured_norms)["layer_shares"]
    assert shares.shape == (K, len(rule.layers))
    np.testing.assert_allclose(shares.sum(1), np.ones(K), rtol=1e-12)
