"""Every convolution equals XLA's in values and gradients, and is chosen where it pays."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from support import programs, worlds

from fedvg_jax.models.conv import patches, planes, rewrite, taps, winograd

DIMENSIONS = ("NHWC", "HWIO", "NHWC")

CASES = {  # (height, width), kernel, stride, padding before and after
    "5x5": ((9, 7), (5, 5), (1, 1), ((0, 0), (0, 0))),
    "even kernel padded": ((5, 5), (2, 4), (1, 1), ((0, 1), (1, 2))),
    "3x3 stride 2, torch's padding": ((8, 8), (3, 3), (2, 2), ((1, 1), (1, 1))),
    "unequal strides and padding": ((7, 9), (3, 2), (3, 1), ((2, 0), (0, 3))),
    "3x3 on one pixel: 8 dead taps": ((1, 1), (3, 3), (1, 1), ((1, 1), (1, 1))),
    "7x7 stride 2 on 2 pixels: dead taps all round": ((2, 2), (7, 7), (2, 2), ((3, 3), (3, 3))),
    "stride skips the border": ((4, 4), (1, 1), (3, 3), ((1, 0), (1, 0))),
    "stride past a small image": ((2, 2), (3, 3), (4, 4), ((3, 3), (3, 3))),
}


def by_lax(x, w, strides=(1, 1), pads=((1, 1), (1, 1))):
    return lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=DIMENSIONS)


def assert_equal_values_and_gradients(functions, x, w):
    """Asserts that functions of (x, w) have the values and gradients of the first; all are one program."""

    def value_and_gradients(f, x, w):
        y, pullback = jax.vjp(f, x, w)
        return y, pullback(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    def run(x, w):
        return [value_and_gradients(f, x, w) for f in functions]

    expected, *actual = worlds.jit(run)(x, w)
    for result in actual:
        worlds.assert_close(result, expected, 1e-9)


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]  # NumPy, of which slices compile nothing


@pytest.mark.parametrize("case", CASES)
def test_patches_and_taps_equal_lax_in_value_and_gradients(x64, case):
    size, kernel, *settings = CASES[case]
    functions = [by_lax, patches.convolve, taps.convolve]
    functions = [lambda x, w, f=f: f(x, w, *settings) for f in functions]
    assert_equal_values_and_gradients(functions, *drawn((3, *size, 2), (*kernel, 2, 4)))


@pytest.mark.parametrize(
    "case", ["unequal strides and padding", "7x7 stride 2 on 2 pixels: dead taps all round"]
)
def test_clients_with_their_own_kernels_equal_lax_under_vmap(x64, case):
    """vmap batches each primitive by itself: these cases have every one of them (strided slices,
    padding, cropping, one tap and several)."""
    size, kernel, *settings = CASES[case]
    functions = [by_lax, patches.convolve, taps.convolve]
    functions = [jax.vmap(lambda x, w, f=f: f(x, w, *settings)) for f in functions]
    assert_equal_values_and_gradients(functions, *drawn((2, 3, *size, 2), (2, *kernel, 2, 4)))


@pytest.mark.parametrize(("size", "tile"), [((3, 5), 2), ((1, 4), 2), ((7, 3), 4)], ids=str)
def test_winograd_equals_lax_in_value_and_gradients(x64, size, tile):
    assert winograd.tile_size(size) == tile
    arrays = drawn((2, *size, 3), (3, 3, 3, 4))
    assert_equal_values_and_gradients([by_lax, winograd.convolve], *arrays)


def channel_products(
    size=(4, 4), channels=16, kernel=3, stride=1, padding="SAME", dtype=jnp.float32
):
    """Scalar products of all matmuls over channels, of an image, for each channel in and out; those over places
    contract no multiple of the channels."""
    x = jax.ShapeDtypeStruct((2, *size, channels), dtype)
    w = jax.ShapeDtypeStruct((kernel, kernel, channels, 16), dtype)
    strides = (stride, stride)
    pads = tuple(lax.padtype_to_pads(size, (kernel, kernel), strides, padding))
    convolve = functools.partial(rewrite._fewest_products, strides=strides, pads=pads)
    expected = functools.partial(by_lax, strides=strides, pads=pads)
    assert jax.eval_shape(convolve, x, w) == jax.eval_shape(expected, x, w)
    count = 0
    for equation in programs.equations(convolve, x, w):
        if equation.primitive.name == "dot_general":
            (axes, _), _ = equation.params["dimension_numbers"]
            contracted = math.prod(equation.invars[0].aval.shape[axis] for axis in axes)
            if contracted % channels == 0:
                count += contracted * math.prod(equation.outvars[0].aval.shape)
    return count / (2 * channels * 16)


@pytest.mark.parametrize(
    ("changes", "products"),
    [({}, 36), ({"size": (6, 6)}, 9 * 16), ({"size": (1, 1)}, 1), ({"channels": 15}, 16 * 9),
     ({"kernel": 7, "size": (12, 12)}, 144 * 49), ({"stride": 2, "size": (8, 8)}, 16 * 9),
     ({"padding": "VALID"}, 4 * 9), ({"dtype": jnp.bfloat16, "size": (6, 6)}, 36 * 9), ({"size": (2, 2)}, 16),
     ({"size": (3, 5)}, 91), ({"stride": 2}, 25)],
)  # fmt: skip
def test_winograd_and_taps_are_chosen_where_they_pay_and_gemm_elsewhere(changes, products):
    """36 for 4 x 4 outputs or 16 for 2 x 2; or, tap by tap, the pixels it meets, (3 n - 2) along a side of n; or an
    output's taps, of which gemm leaves out those that meet no pixel."""
    assert channel_products(**changes) == products


@pytest.mark.parametrize(
    ("size", "kernel", "channels", "features", "padding", "leading"),
    [
        ((10, 10), 5, 16, 16, "VALID", (4, 1, 1)),  # Winograd, 2 x 2 output tiles
        ((24, 8), 5, 16, 17, "VALID", (5,)),  # Winograd on the height, 5 rows in each of 4 tiles
        ((8, 10), 5, 17, 16, "SAME", (4,)),  # 4 rows in each of 2 tiles
        ((8, 12), 3, 32, 33, "SAME", (4, 2, 2)),  # Winograd, 4 x 4 output tiles
        ((8, 10), 3, 32, 32, "SAME", (4, 1, 1)),  # 4 x 4 output tiles would leave a border
        ((8, 8), 5, 3, 33, "SAME", ()),  # enough output channels for a plain matmul
        ((7, 6), 3, 16, 16, "SAME", ()),  # an odd height: 2 x 2 windows leave a border
        ((6, 6), 2, 16, 16, "SAME", ()),  # an even kernel
    ],
)
def test_pooled_convolution_of_images_last_equals_lax_in_value_and_gradients(
    x64, size, kernel, channels, features, padding, leading
):
    """`leading` are the axes before that of the channels: for the positions in windows and tiles."""
    x, w = drawn((2, *size, channels), (kernel, kernel, channels, features))
    pads = lax.padtype_to_pads(size, (kernel, kernel), (1, 1), padding)

    def convolve(x, w):
        return planes.convolve(jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0))), w)

    y = jax.eval_shape(convolve, x, w)
    assert y.shape[:-3] == (*leading, features)

    def pooled(x, w):
        return planes.max_pool(convolve(x, w)).transpose(3, 1, 2, 0)

    def expected(x, w):
        return nn.max_pool(by_lax(x, w, pads=pads), (2, 2), (2, 2))

    assert_equal_values_and_gradients([expected, pooled], x, w)
