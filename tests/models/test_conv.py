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

CASES = {  # (height, width), kernel, stride, padding
    "5x5": ((9, 7), (5, 5), (1, 1), "VALID"),
    "even kernel padded": ((5, 5), (2, 4), (1, 1), "SAME"),
    "3x3 padded, many outputs": ((9, 8), (3, 3), (1, 1), "SAME"),
    "3x3 stride 2, torch's padding": ((8, 8), (3, 3), (2, 2), [(1, 1), (1, 1)]),
    "1x1 stride 2": ((5, 6), (1, 1), (2, 2), "VALID"),
    "unequal strides and padding": ((7, 9), (3, 2), (3, 1), [(2, 0), (0, 3)]),
    "3x3 on one pixel: 8 dead taps": ((1, 1), (3, 3), (1, 1), "SAME"),
    "7x7 stride 2 on 2 pixels: dead taps all round": ((2, 2), (7, 7), (2, 2), [(3, 3), (3, 3)]),
    "stride skips the border": ((4, 4), (1, 1), (3, 3), [(1, 0), (1, 0)]),
    "stride past a small image": ((2, 2), (3, 3), (4, 4), [(3, 3), (3, 3)]),
}

DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def value_and_pullback(conv_fn, stride, padding):
    """Returns (x, w, dy) -> (y, dx, dw) for one client."""

    def one(x, w, dy):
        y, pullback = jax.vjp(
            lambda x, w: conv_fn(
                x, w, stride, padding, lhs_dilation=(1, 1), rhs_dilation=(1, 1),
                dimension_numbers=DIMENSIONS, feature_group_count=1,
            ),
            x, w,
        )  # fmt: skip
        return y, *pullback(dy)

    return one


def arrays(case):
    """Returns x, w and dy of two clients, stacked."""
    size, kernel, stride, padding = CASES[case]
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, *size, 2)), rng.normal(size=(2, *kernel, 2, 4))
    conv_fn = functools.partial(
        lax.conv_general_dilated,
        window_strides=stride,
        padding=padding,
        dimension_numbers=DIMENSIONS,
    )
    out = jax.eval_shape(conv_fn, x[0], w[0])
    return x, w, rng.normal(size=(2, *out.shape))  # NumPy, of which slices compile nothing


def explicit_pads(case):
    size, kernel, stride, padding = CASES[case]
    return tuple(
        lax.padtype_to_pads(size, kernel, stride, padding) if isinstance(padding, str) else padding
    )


def assert_equals_lax(case, args, transform):
    """Asserts that patches and single taps give lax's value and gradients; the three are one program."""
    _, _, stride, padding = CASES[case]
    conv_fns = {
        "lax": lax.conv_general_dilated,
        "gemm": lambda x, w, strides, padding, **_: patches.convolve(
            x, w, strides, explicit_pads(case)
        ),
        "taps": lambda x, w, strides, padding, **_: taps.convolve(
            x, w, strides, explicit_pads(case)
        ),
    }
    run = {name: transform(value_and_pullback(f, stride, padding)) for name, f in conv_fns.items()}
    actual = worlds.jit(lambda *args: {name: f(*args) for name, f in run.items()})(*args)
    for name in ("gemm", "taps"):
        worlds.assert_close(actual[name], actual["lax"], 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_patches_and_taps_equal_lax_in_value_and_gradients(x64, case):
    assert_equals_lax(case, [a[0] for a in arrays(case)], lambda f: f)


@pytest.mark.parametrize(
    "case",
    [
        "3x3 padded, many outputs",
        "unequal strides and padding",
        "7x7 stride 2 on 2 pixels: dead taps all round",
    ],
)
def test_clients_with_their_own_kernels_equal_lax_under_vmap(x64, case):
    """vmap batches each primitive by itself: these cases have every one of them (strided slices,
    padding, cropping, one tap and several)."""
    assert_equals_lax(case, arrays(case), jax.vmap)


@pytest.mark.parametrize(
    ("size", "tile"), [((3, 5), 2), ((1, 4), 2), ((8, 4), 4), ((7, 3), 4)], ids=str
)
def test_winograd_equals_lax_in_value_and_gradients(x64, size, tile):
    assert winograd.tile_size(size) == tile
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s) for s in ((2, *size, 3), (3, 3, 3, 4), (2, *size, 4))]
    filtered = value_and_pullback(
        lambda x, w, *_, **__: winograd.convolve(x, w), (1, 1), [(1, 1), (1, 1)]
    )
    expected = value_and_pullback(lax.conv_general_dilated, (1, 1), [(1, 1), (1, 1)])
    worlds.assert_close(*worlds.jit(lambda *args: (filtered(*args), expected(*args)))(*args), 1e-9)


def channel_products(function, arguments, num_channels):
    """Scalar products of all matmuls over channels; those over places contract no multiple of the channels."""
    count = 0
    for equation in programs.equations(function, *arguments):
        if equation.primitive.name == "dot_general":
            (axes, _), _ = equation.params["dimension_numbers"]
            contracted = math.prod(equation.invars[0].aval.shape[axis] for axis in axes)
            if contracted % num_channels == 0:
                count += contracted * math.prod(equation.outvars[0].aval.shape)
    return count


@pytest.mark.parametrize(
    ("changes", "products"),
    [({}, 36), ({"size": (7, 8)}, 4 * 36), ({"size": (6, 6)}, 9 * 16), ({"size": (4, 5)}, 6 * 16),
     ({"size": (1, 1)}, 1), ({"size": (1, 4)}, 4 * 3), ({"channels": 15}, 16 * 9), ({"features": 15}, 16 * 9),
     ({"kernel": 7, "size": (12, 12)}, 144 * 49), ({"stride": 2, "size": (8, 8)}, 16 * 9),
     ({"padding": "VALID"}, 4 * 9), ({"dtype": jnp.bfloat16, "size": (6, 6)}, 36 * 9),
     ({"size": (2, 2)}, 16), ({"size": (3, 3)}, 49), ({"size": (3, 5)}, 91),
     ({"size": (2, 2), "dtype": jnp.bfloat16}, 16), ({"stride": 2}, 25),
     ({"kernel": 5, "size": (2, 2)}, 16), ({"size": (2, 2), "channels": 15}, 4 * 9)],
)  # fmt: skip
def test_winograd_and_taps_are_chosen_where_they_pay_and_gemm_elsewhere(changes, products):
    """Of an image, for each channel in and out: 36 for 4 x 4 outputs or 16 for 2 x 2; or, tap by tap, the pixels it
    meets, (3 n - 2) along a side of n; or an output's taps, of which gemm leaves out those that meet no pixel."""
    case = {"size": (4, 4), "channels": 16, "features": 16, "kernel": 3, "stride": 1, "padding": "SAME",
            "dtype": jnp.float32} | changes  # fmt: skip
    x = jax.ShapeDtypeStruct((2, *case["size"], case["channels"]), case["dtype"])
    w = jax.ShapeDtypeStruct(
        (case["kernel"],) * 2 + (case["channels"], case["features"]), case["dtype"]
    )
    strides = (case["stride"],) * 2
    pads = lax.padtype_to_pads(case["size"], w.shape[:2], strides, case["padding"])
    conv_fn = functools.partial(rewrite._fewest_products, strides=strides, pads=pads)
    actual = channel_products(conv_fn, (x, w), case["channels"])
    assert actual == 2 * case["channels"] * case["features"] * products
    expected = functools.partial(
        lax.conv_general_dilated, window_strides=strides, padding=case["padding"],
        dimension_numbers=DIMENSIONS,
    )  # fmt: skip
    assert jax.eval_shape(conv_fn, x, w) == jax.eval_shape(expected, x, w)


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
    rng = np.random.default_rng(0)
    shapes = (2, *size, channels), (kernel, kernel, channels, features)
    x, w = (rng.normal(size=shape) for shape in shapes)
    pads = lax.padtype_to_pads(size, (kernel, kernel), (1, 1), padding)

    def convolve(x, w):
        return planes.convolve(jnp.pad(x.transpose(3, 1, 2, 0), ((0, 0), *pads, (0, 0))), w)

    y = jax.eval_shape(convolve, x, w)
    assert y.shape[:-4] == leading
    assert y.shape[-4] == features

    def pooled(x, w):
        return planes.max_pool(convolve(x, w)).transpose(3, 1, 2, 0)

    def expected(x, w):
        dims = ("NHWC", "HWIO", "NHWC")
        return nn.max_pool(
            lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=dims), (2, 2), (2, 2)
        )

    def value_and_gradients(f):
        def both(x, w):
            y, pullback = jax.vjp(f, x, w)
            return y, pullback(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

        return both

    run = [value_and_gradients(f) for f in (pooled, expected)]
    worlds.assert_close(*worlds.jit(lambda x, w: [f(x, w) for f in run])(x, w), 1e-9)
