"""Times each implementation of a convolution (`--conv`) on the layers of the package's networks, on one core.

    python -m benchmarks.speed.convolutions [--layers cnn_conv1 ...] [--conv gemm planes ...] [--repeats 9] [--out FILE]

A step is the convolution with a bias, ReLU and, where the network pools next, 2 x 2 pooling, with the gradients of
kernel, bias and input. The implementations take turns. Prints microseconds per image and writes them to FILE.json.
`--conv lax`, XLA's own, takes minutes on the layers of ResNet-18, and is left out by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import machine

NAMES = ("lax", "gemm", "winograd", "planes")
"""Values of `--conv`; all but the first are timed by default."""
STEPS = 8
"""In one timing."""


class Layer(NamedTuple):
    """A convolution with stride 1."""

    size: int
    """height and width of its input"""
    channels: int
    features: int
    kernel: int
    padding: str
    is_pooled: bool
    images: int
    """B"""


LAYERS = {
    "lenet5_conv1": Layer(32, 3, 6, 5, "VALID", True, 32),
    "lenet5_conv2": Layer(14, 6, 16, 5, "VALID", True, 32),
    "cnn_conv1": Layer(32, 3, 32, 5, "VALID", True, 32),
    "cnn_conv2": Layer(14, 32, 64, 5, "VALID", True, 32),
    "pfl_cnn_conv2": Layer(30, 32, 64, 3, "VALID", True, 10),
    "resnet18_32": Layer(32, 64, 64, 3, "SAME", False, 32),
    "resnet18_16": Layer(16, 128, 128, 3, "SAME", False, 32),
    "resnet18_8": Layer(8, 256, 256, 3, "SAME", False, 32),
    "resnet18_4": Layer(4, 512, 512, 3, "SAME", False, 32),
}


def main(argv: list[str] | None = None) -> None:
    """Times the layers and writes the results."""
    parser = machine.parser(__doc__, "amd-epyc-2-cores-convolutions.json")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--conv", nargs="+", choices=NAMES, default=NAMES[1:], help="implementations")
    parser.add_argument("--repeats", type=int, default=9, help="timings of every implementation, in turns")
    args = parser.parse_args(argv)
    results = machine.begin("speed.convolutions", argv) | {"layers": {}}
    machine.pin_to_one_core()
    for name in args.layers:
        results["layers"][name] = time_layer(LAYERS[name], args.conv, args.repeats)
        medians = {conv: spread["median"] for conv, spread in results["layers"][name].items()}
        print(f"{name:16s}" + "".join(f"{conv:>10s} {median:7.1f}" for conv, median in medians.items()), flush=True)
    machine.finish(args.out, results)


def time_layer(layer: Layer, names: Sequence[str], repeats: int) -> dict[str, dict[str, float]]:
    """Returns CPU microseconds per image of a step, by implementation, as `machine.spread`."""
    steps = {name: compiled_steps(layer, name) for name in names}
    return machine.cpu_in_turns(steps, repeats, 1e6 / (STEPS * layer.images))


def compiled_steps(layer: Layer, name: str) -> Callable[[], Any]:
    """Returns a function that runs the steps of a layer with one implementation, compiled and warm."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    from fedvg_jax.models import layers
    from fedvg_jax.models.conv.rewrite import fast_convolutions

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(layer.images, layer.size, layer.size, layer.channels)), jnp.float32)
    taps = (layer.kernel, layer.kernel, layer.channels, layer.features)
    w, bias = jnp.asarray(0.05 * rng.normal(size=taps), jnp.float32), jnp.zeros(layer.features)

    def written(w, bias, x):
        y = lax.conv_general_dilated(x, w, (1, 1), layer.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
        return jnp.square(jax.nn.relu(layers.pool(y) if layer.is_pooled else y)).sum()

    loss = fast_convolutions(written, name)

    def steps(*start):
        def step(i, arguments):
            return jax.tree.map(lambda a, g: a - 1e-9 * g, arguments, jax.grad(loss, (0, 1, 2))(*arguments))

        return lax.fori_loop(0, STEPS, step, start)

    run = jax.jit(steps).lower(w, bias, x).compile()
    jax.block_until_ready(run(w, bias, x))
    return lambda: jax.block_until_ready(run(w, bias, x))


if __name__ == "__main__":
    main()
