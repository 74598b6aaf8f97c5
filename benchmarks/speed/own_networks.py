"""Times local steps of networks that a user writes with Flax beside the shipped ones, on one core.

    python -m benchmarks.speed.own_networks [--networks NAME ...] [--repeats 7] [--out FILE.json]

A timing is a scan of SGD steps on minibatches, as a client takes them. These variants take turns: the shipped network
of that shape, if there is one; the own network as it is written; and as a run computes it, after `fast_convolutions`.
Prints milliseconds of CPU per step and writes them to FILE.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import machine

NETWORKS = {
    "two_layers": ("tinycnn", 8, 1, 32, 40),
    "two_layers_nnx": ("tinycnn", 8, 1, 32, 40),
    "cnn": ("cnn", 32, 3, 32, 4),
    "depthwise": ("", 32, 3, 32, 4),
    "resnet18": ("resnet18_cifar", 32, 3, 8, 1),
}
"""Own network -> shipped network of its shape, height of the images, channels, rows of a minibatch, steps."""


def main(argv: list[str] | None = None) -> None:
    """Times the networks and writes the results."""
    parser = machine.parser(__doc__, "own_networks.json")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--repeats", type=int, default=7, help="timings of every variant, in turns")
    args = parser.parse_args(argv)
    results = machine.begin("speed.own_networks", argv) | {"networks": {}}
    machine.pin_to_one_core()
    for name in args.networks:
        results["networks"][name] = measured = time_network(name, args.repeats)
        medians = {variant: spread["median"] for variant, spread in measured.items()}
        print(f"{name:16s}" + "".join(f"{variant:>10s} {median:9.2f} ms" for variant, median in medians.items()))
    machine.finish(args.out, results)


def time_network(name: str, repeats: int) -> dict[str, dict[str, float]]:
    """Returns CPU milliseconds of a step by variant: `shipped`, `written` and `run`."""
    shipped, *shape, rows, num_steps = NETWORKS[name]
    variants = tasks(name, shipped, shape)
    steps = {variant: compiled_steps(task, shape, rows, num_steps) for variant, task in variants.items()}
    return machine.cpu_in_turns(steps, repeats, 1e3 / num_steps)


def tasks(name: str, shipped: str, shape: list[int]) -> dict[str, Any]:
    """Returns the task of every variant."""
    import jax.numpy as jnp
    import optax

    import fedvg_jax as fv
    from fedvg_jax.models.conv.rewrite import fast_task
    from fedvg_jax.runs.assemble import registry

    size, channels = shape
    example, loss = jnp.zeros((1, size, size, channels)), optax.softmax_cross_entropy_with_integer_labels
    if name == "two_layers_nnx":
        written = fv.nnx_task(lambda rngs: nnx_network(size, channels, rngs), loss, example)
    else:
        written = fv.linen_task(linen_networks()[name](), loss, example)
    variants = {"written": written, "run": fast_task(written)}
    if shipped:
        config = fv.Config(model=shipped, **({"norm_layers": "group"} if shipped == "resnet18_cifar" else {}))
        variants = {"shipped": registry.named_task(config, (size, size, channels), 10)} | variants
    return variants


def compiled_steps(task: Any, shape: list[int], rows: int, num_steps: int) -> Callable[[], Any]:
    """Returns a function that takes the local steps, compiled and warm."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fedvg_jax.core.types import Batch

    size, channels = shape
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(num_steps, rows, size, size, channels)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, (num_steps, rows)), jnp.int32)
    params, stats = task.init(jax.random.key(0))

    def train(params, x, y):
        def step(params, batch):
            grads = jax.grad(task.loss, has_aux=True)(params, stats, Batch(*batch), jnp.ones(rows, bool), True)[0]
            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), None

        return jax.lax.scan(step, params, (x, y))[0]

    run = jax.jit(train).lower(params, x, y).compile()
    jax.block_until_ready(run(params, x, y))
    return lambda: jax.block_until_ready(run(params, x, y))


def linen_networks() -> dict[str, Any]:
    """Returns the own networks of Linen by name, as a user writes them."""
    import flax.linen as nn
    import jax.numpy as jnp

    class TwoLayers(nn.Module):
        @nn.compact
        def __call__(self, x):
            for features in (16, 32):
                x = nn.max_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), (2, 2))
            x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
            return nn.Dense(10)(x)

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x):
            for features in (32, 64):
                x = nn.max_pool(nn.relu(nn.Conv(features, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
            x = nn.relu(nn.Dense(512)(x.reshape(len(x), -1)))
            return nn.Dense(10)(x)

    class Depthwise(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(16, (3, 3), 2)(x))
            for features in (32, 64, 128):
                x = nn.relu(nn.Conv(x.shape[-1], (3, 3), feature_group_count=x.shape[-1])(x))
                x = nn.relu(nn.Conv(features, (1, 1))(x))
            return nn.Dense(10)(x.mean((1, 2)))

    class Block(nn.Module):
        features: int
        stride: int

        @nn.compact
        def __call__(self, x):
            y = nn.relu(nn.GroupNorm(32)(nn.Conv(self.features, (3, 3), self.stride, use_bias=False)(x)))
            y = nn.GroupNorm(32)(nn.Conv(self.features, (3, 3), use_bias=False)(y))
            if x.shape != y.shape:
                x = nn.GroupNorm(32)(nn.Conv(self.features, (1, 1), self.stride, use_bias=False)(x))
            return nn.relu(x + y)

    class ResNet18(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.GroupNorm(32)(nn.Conv(64, (3, 3), use_bias=False)(x)))
            for features, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
                x = Block(features, 1)(Block(features, stride)(x))
            return nn.Dense(10)(jnp.mean(x, (1, 2)))

    return {"two_layers": TwoLayers, "cnn": CNN, "depthwise": Depthwise, "resnet18": ResNet18}


def nnx_network(size: int, channels: int, rngs: Any) -> Any:
    """Returns the network of two layers as an NNX module."""
    from flax import nnx

    def pool(x):
        return nnx.max_pool(nnx.relu(x), (2, 2), (2, 2))

    return nnx.Sequential(
        nnx.Conv(channels, 16, (3, 3), rngs=rngs),
        pool,
        nnx.Conv(16, 32, (3, 3), rngs=rngs),
        pool,
        lambda x: x.reshape(len(x), -1),
        nnx.Linear((size // 4) ** 2 * 32, 64, rngs=rngs),
        nnx.relu,
        nnx.Linear(64, 10, rngs=rngs),
    )


if __name__ == "__main__":
    main()
