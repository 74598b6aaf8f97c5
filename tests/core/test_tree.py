"""Sums over clients and what they tell: against the equation, and wherever one bad number stands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.targets import hlo
from fedvg_jax.core import hardware as hw
from fedvg_jax.core import tree


@pytest.mark.parametrize("cohort", [1, 37])
def test_a_weighted_sum_has_the_value_and_derivatives_of_its_equation(cohort, x64):
    rng = np.random.default_rng(cohort)
    weights, stack, origin = (jnp.asarray(rng.normal(size=shape)) for shape in ((cohort,), (cohort, 2, 3), (2, 3)))

    def equation(w, x, o):
        return jnp.einsum("k,kij->ij", w, x - o[None])

    @worlds.jit
    def value_and_derivatives(*arguments):
        return [
            (f(*arguments), jax.jacrev(f, (0, 1, 2))(*arguments), jax.jacfwd(f, (0, 1, 2))(*arguments))
            for f in (tree.weighted_sum, equation)
        ]

    worlds.assert_close(*value_and_derivatives(weights, stack, origin), 1e-12)


@pytest.mark.parametrize("way", ["loop", "product"])
def test_a_mean_of_many_models_of_half_precision_loses_none(way):
    """A sum in bfloat16 would stall at half of it."""
    platform = "cpu" if way == "loop" else "gpu"
    hardware = hw.Hardware(platform, platform, num_devices=1, cores=1, memory_bytes=None)
    models, origin = jnp.ones((1000, 1), jnp.bfloat16), jnp.zeros(1, jnp.bfloat16)
    with hw.assumed(hardware):
        total = tree.weighted_sum(jnp.full(1000, 1e-3), models, origin)
    assert (total.dtype, float(total[0])) == (jnp.bfloat16, 1.0)


def sharding_over(num_devices):
    """Returns the sharding of a leading axis over devices."""
    return NamedSharding(Mesh(jax.devices()[:num_devices], ("devices",)), PartitionSpec("devices"))


@pytest.mark.parametrize(("cohort", "num_devices"), [(4, 2), (5, 4)])
def test_a_weighted_sum_over_devices_equals_that_of_one(cohort, num_devices, x64):
    """The second does not divide the cohort. On one device the bits are those of the loop."""
    rng = np.random.default_rng(cohort)
    weights, stack, origin = (jnp.asarray(rng.normal(size=shape)) for shape in ((cohort,), (cohort, 7), (7,)))

    def value_and_derivative(sharding):
        sum_of = functools.partial(tree.weighted_sum, sharding=sharding)
        return worlds.jit(lambda *x: (sum_of(*x), jax.grad(lambda w: sum_of(w, *x[1:])[0])(x[0])))

    actual = value_and_derivative(sharding_over(num_devices))(weights, stack, origin)
    expected = value_and_derivative(None)(weights, stack, origin)
    worlds.assert_close(jax.tree.map(np.asarray, actual), jax.tree.map(np.asarray, expected), 1e-12)


def test_a_weighted_sum_over_devices_gathers_no_client():
    """Each adds up its own clients, and one of the sum's size is exchanged."""
    sharding = sharding_over(2)
    stack = jax.ShapeDtypeStruct((4, 1000), np.float32, sharding=sharding)
    weights, origin = jax.ShapeDtypeStruct((4,), np.float32), jax.ShapeDtypeStruct((1000,), np.float32)

    def collectives(sharding):
        compiled = worlds.jit(functools.partial(tree.weighted_sum, sharding=sharding)).lower(weights, stack, origin)
        kernels = hlo.all_kernels(hlo.sections(hlo.parse(compiled.compile().as_text())))
        return {(kernel.opcode, hlo.num_bytes(kernel.shape)) for _, kernel in kernels if kernel.is_collective}

    assert collectives(sharding) == {("all-reduce", 4000)}
    assert ("all-gather", 16000) in collectives(None), "the loop without its devices is what this replaces"


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("size", [1, 1000])
def test_one_nonfinite_number_marks_its_client_at_any_position(size, bad):
    places = sorted({0, size // 2, size - 1})
    leaf = np.random.default_rng(0).normal(size=(1 + len(places), size)).astype(np.float32)
    leaf[1 + np.arange(len(places)), places] = bad
    flags = worlds.jit(tree.is_finite)({"a": jnp.asarray(leaf), "none": jnp.zeros((len(leaf), 0))})
    assert flags.tolist() == [True] + len(places) * [False]


def test_copies_are_on_the_same_devices_and_outlive_what_they_copy():
    mesh = jax.sharding.Mesh(jax.devices(), ("devices",))
    placements = [jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("devices",))]
    key = jax.device_put(jax.random.key(1), placements[0])
    arrays = {"key": key, "rows": [jax.device_put(np.arange(8.0), placement) for placement in placements]}
    copied = tree.copies(arrays)
    for leaf, copy in zip(jax.tree.leaves(arrays), jax.tree.leaves(copied), strict=True):
        assert copy.dtype == leaf.dtype and copy.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
    for leaf in arrays["rows"]:
        leaf.delete()
    assert [copy.tolist() for copy in copied["rows"]] == 2 * [list(range(8))]
    assert jax.random.key_data(copied["key"]).tolist() == [0, 1]
