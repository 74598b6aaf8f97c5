"""Data and partitions passed as arrays: any rank and dtype is accepted, unusable arrays are refused in one line."""

import dataclasses

import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.data import user_data
from fedvg_jax.runs.record import provenance

LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("bool", (6,)),
        ("uint8", (6,)),
        ("int64", (6, 3)),
        ("float16", (6, 2, 3)),
        ("float64", (6, 2, 2, 2, 2)),
    ],
)
def test_any_rank_and_dtype_is_accepted_unchanged(dtype, shape):
    x = np.ones(shape, dtype)
    result = user_data.as_arrays((x, x))
    assert result.x is x and result.name == "data"
    is_label = len(shape) == 1 and dtype in ("uint8", "int64")
    assert result.class_names == (("0", "1") if is_label else ())


@pytest.mark.parametrize("dtype", [">f4", ">u2"])
def test_bytes_in_the_order_of_another_machine_give_the_same_values(dtype):
    x = np.arange(6).astype(dtype)
    result = user_data.as_arrays((x, LABELS.astype(dtype)))
    assert result.x.dtype.isnative
    np.testing.assert_array_equal(result.x, x)


def test_data_digest_is_of_what_was_read_and_equal_for_every_partition():
    x = np.random.default_rng(0).normal(3, 50, (60, 3))
    config = fv.Config(clients=2, model="linear", partition="iid")
    digests = []
    for seed in (0, 1):
        made = dataclasses.replace(config, partition_seed=seed)
        sim = resolve.experiment.simulation(made, data=(x, np.arange(60) % 3))
        digests.append(provenance.sources(sim))
    first, second = digests
    assert first["data"] == second["data"] and first["partition"] != second["partition"]
