"""Double precision on several CPU devices at once, which `--devices` refuses; see `hardware.Choices`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

CALLS = 60
WIDTHS = (192, 256, 256, 10)


def loss(params, x):
    for w in params[:-1]:
        h = x @ w
        x = jnp.maximum((h - h.mean(0, keepdims=True)) / jnp.sqrt(h.var(0, keepdims=True) + 1e-5), 0)
    return jax.nn.logsumexp(x @ params[-1], -1).mean()


def train(params, x):
    """Returns the parameters after 20 local steps."""
    return lax.fori_loop(0, 20, lambda _, p: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x)), params)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_double_precision_on_devices_at_once_equals_one_device_in_every_call(x64, count):
    """The smallest program of the kind that once differed between calls. It has passed with jax 0.10.2 and 0.12.0.1.

    A failure is the defect that the refusal in `runs.registry` is for. The refusal can go once the cause is known.
    """
    rng = np.random.default_rng(0)
    params = [rng.standard_normal((a, b)) / np.sqrt(a) for a, b in itertools.pairwise(WIDTHS)]
    x = rng.standard_normal((count, 32, WIDTHS[0]))

    def train_on_device(params, x):
        return [w[None] for w in train(params, x[0])]

    mesh = Mesh(jax.devices()[:count], "devices")
    specs = {"in_specs": (P(), P("devices")), "out_specs": P("devices")}
    together = jax.jit(jax.shard_map(train_on_device, mesh=mesh, **specs, check_vma=False))
    alone = jax.jit(train)
    expected = [np.stack(w) for w in zip(*(alone(params, x[i]) for i in range(count)), strict=True)]
    assert expected[0].dtype == np.float64
    for call in range(CALLS):
        for actual, of_one in zip(together(params, x), expected, strict=True):
            np.testing.assert_allclose(actual, of_one, rtol=0, atol=1e-12, err_msg=f"call {call}")
