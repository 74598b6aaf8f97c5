"""Convolutions and poolings of any function, replaced by those of the package: values and derivatives are the same."""

import functools
import random

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from support import worlds
from support.programs import primitives

import fedvg_jax as fv
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.conv import rewrite


def drawn_convolution(seed):
    """Returns a drawn convolution of rows or images, plain or depthwise, of any layout, and its operands."""
    draw = random.Random(seed)
    rng = np.random.default_rng(seed)
    space = draw.choice(["W", "HW", "HW"])
    groups = draw.choice([1, 1, 3])
    strides = [draw.randint(1, 2) for _ in space]
    padding = draw.choice(["SAME", "VALID"])
    inputs, outputs = (draw.choice([1, 2, 3]), 2) if groups == 1 else (1, 1)
    layouts = ["".join(draw.sample(axes + space, len(axes + space))) for axes in ("NC", "IO", "NC")]
    sizes = {axis: draw.randint(3, 7) for axis in space} | {"N": 2, "C": groups * inputs}
    taps = {axis: draw.randint(1, 3) for axis in space} | {"I": inputs, "O": groups * outputs}
    x = rng.normal(size=[sizes[axis] for axis in layouts[0]])
    w = rng.normal(size=[taps[axis] for axis in layouts[1]])

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=layouts, feature_group_count=groups
        )

    return convolve, (jnp.asarray(x), jnp.asarray(w))


LAYOUTS = ("NHWC", "HWIO", "NHWC")


def convolve(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS)


def derivatives(function, operands):
    """Returns the values, and the gradient with a Hessian-vector product of a smooth function of the outputs."""

    def smooth(operands):
        outputs = function(*operands)
        return sum(jnp.sin(out).sum() for out in jax.tree.leaves(outputs)), outputs

    return jax.jvp(jax.grad(smooth, has_aux=True), (operands,), (operands,))


def test_drawn_convolutions_have_the_same_values_and_derivatives(x64):
    cases = [drawn_convolution(seed) for seed in range(8)]
    operands = [operands for _, operands in cases]

    def all_of(transform):
        functions = [transform(function) for function, _ in cases]
        return jax.jit(lambda operands: list(map(derivatives, functions, operands)))(operands)

    for function, arguments in cases:
        fast = rewrite.fast_convolutions(function)
        assert "conv_general_dilated" not in str(jax.make_jaxpr(fast)(*arguments))
    actual = all_of(rewrite.fast_convolutions)
    expected = all_of(lambda function: function)
    chex.assert_trees_all_equal_dtypes(actual, expected)
    chex.assert_trees_all_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((2, 2), (2, 2), "VALID"),
        ((3, 3), (2, 2), ((1, 1), (1, 1))),
        ((2, 3), (1, 2), "VALID"),
        ((3, 3), (3, 3), "SAME"),
    ],
)
def test_max_pooling_has_the_same_values_and_the_gradient_of_the_first_of_equals(
    x64, window, strides, padding
):
    x = jnp.asarray(np.random.default_rng(0).integers(-3, 0, (2, 7, 8, 3)), float)  # many ties

    def pool(x):
        return nn.max_pool(x, window, strides, padding)

    weights = jnp.asarray(np.random.default_rng(1).normal(size=pool(x).shape))
    actual, expected = (
        jax.jit(jax.value_and_grad(lambda x, f=f: (f(x) * weights).sum()))(x)
        for f in (rewrite.fast_convolutions(pool), pool)
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-12, atol=1e-12)
    x = x.at[0, 1, 1, 0].set(jnp.nan)
    np.testing.assert_array_equal(rewrite.fast_convolutions(pool)(x), pool(x))


def test_unusual_convolutions_and_poolings_are_left():
    """Windows larger than the image, volumes, dilations."""
    of_images = functools.partial(lax.conv_general_dilated, dimension_numbers=LAYOUTS)

    def functions(x, w, cube):
        return [
            of_images(x, w, (2, 2), "VALID"),
            of_images(x, w[:2, :2], (1, 1), "SAME", rhs_dilation=(2, 2)),
            lax.conv(cube, cube, (1, 1, 1), "SAME"),
            nn.max_pool(x, (3, 3), (2, 2)),
        ]

    arguments = jnp.ones((2, 2, 2, 3)), jnp.ones((5, 5, 3, 3)), jnp.ones((1, 1, 3, 3, 3))
    actual = rewrite.fast_convolutions(functions)(*arguments)
    chex.assert_trees_all_equal(actual, functions(*arguments))


def layered(x, w1, w2, bias, layouts):
    """Two convolutions with what networks have between them: batch statistics, masks, residuals, poolings."""
    axes = tuple(i for i, axis in enumerate(layouts[0]) if axis != "C")
    window = tuple(1 + (axis in "HW") for axis in layouts[0])

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layouts)

    y = convolve(x, w1)
    deviation = y - y.mean(axes, keepdims=True)
    y = deviation * lax.rsqrt(y.var(axes, keepdims=True) + 1e-3) + bias
    # a mask in the order of axes
    y = jnp.where(jnp.arange(y.size).reshape(y.shape) % 3 > 0, nn.relu(y), nn.gelu(y))
    z = convolve(y, w2)
    residual = jnp.maximum(z, 0.1) + y  # tiles of 4 x 4 and of 2 x 2, for some sizes
    pooled = lax.reduce_window(nn.silu(residual), -jnp.inf, lax.max, window, window, "VALID")
    return convolve(pooled, w2).sum(axes), nn.relu(jnp.tanh(pooled) ** 2), z[:, ::2].cumsum(1)


@pytest.mark.parametrize(
    ("conv", "height", "width", "side", "layouts"),
    [
        ("auto", 10, 8, 5, LAYOUTS),
        ("winograd", 12, 8, 3, ("NCHW", "OIHW", "NCHW")),
        ("planes", 5, 7, 5, LAYOUTS),
    ],
)
def test_layers_between_convolutions_have_the_same_values_and_derivatives(
    x64, conv, height, width, side, layouts
):
    rng = np.random.default_rng(0)

    def drawn(layout, **sizes):
        return jnp.asarray(rng.normal(size=[sizes.get(axis, 1) for axis in layout]))

    operands = (
        drawn(layouts[0], N=2, H=height, W=width, C=3),
        0.1 * drawn(layouts[1], H=side, W=side, I=3, O=32),
        0.1 * drawn(layouts[1], H=3, W=3, I=32, O=32),
        drawn(layouts[0], C=32),
    )
    function = functools.partial(layered, layouts=layouts)
    fast = rewrite.fast_convolutions(function, conv)
    assert "conv_general_dilated" not in str(jax.make_jaxpr(fast)(*operands))
    actual, original = (
        worlds.jit(functools.partial(derivatives, f))(operands) for f in (fast, function)
    )
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(original), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(b).max())


def test_hardware_decides_what_auto_replaces():
    gpu = hw.Hardware("gpu", "GPU", num_devices=1, cores=1, memory_bytes=None)
    w = jnp.ones((3, 3, 2, 2))
    for size, is_left in ((64, False), (65, True)):
        x = jnp.ones((1, size, size, 2))
        with hw.assumed(gpu):
            traced = jax.make_jaxpr(rewrite.fast_convolutions(convolve))(x, w)
        assert rewrite._has_rule([traced.jaxpr]) == is_left


def test_nested_functions_are_evaluated_by_the_rules(x64):
    """jit, checkpoint and vmap around a convolution; functions with own derivatives and loops stay whole."""
    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 2, 2)))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 5, 2)))

    def layer(x):
        return nn.relu(convolve(x, w))

    def shifted(x, _):
        return x + 1

    def nested(x):
        y = jax.jit(layer)(jax.checkpoint(layer)(x))
        return jax.jit(shifted)(y, w[0, 0])  # an operand that it does not use, of other axes

    def looped(x):
        return lax.fori_loop(0, 2, lambda _, y: layer(y), nested(x))

    text = str(jax.make_jaxpr(rewrite.fast_convolutions(nested))(x))
    assert "conv_general_dilated" not in text and "custom_jvp" in text and "remat" in text
    fast = rewrite.fast_convolutions(looped)
    assert str(jax.make_jaxpr(fast)(x)).count("conv_general_dilated") == 1
    actual, expected = (jax.jit(jax.vmap(f))(x[None]) for f in (fast, looped))
    chex.assert_trees_all_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_run_rewrites_an_own_network():
    class Convolution(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.Conv(1, (3, 3))(x).mean((1, 2)))

    x = np.random.default_rng(0).normal(size=(40, 4, 4, 1)).astype(np.float32)
    y = np.arange(40) % 2
    task = fv.linen_task(Convolution(), optax.softmax_cross_entropy_with_integer_labels, x[:1])
    config = fv.Config(clients=2, partition="iid", batch_size=4, devices="1")
    sim = fv.simulation(config, data=(x, y), task=task)
    arguments = *sim.state.variables, fv.Batch(x[:4], y[:4].astype(np.int32)), np.ones(4, bool)
    own, of_run = (
        primitives(functools.partial(t.loss, train=True), *arguments) for t in (task, sim.task)
    )
    assert "conv_general_dilated" in own - of_run
