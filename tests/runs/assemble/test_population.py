"""Partition, validation set, selecting rows, corrupt rows and single rows of minibatches, from a config."""

import chex
import numpy as np
import pytest
from support import resolved, worlds
from support.files import one_line

import fedvg_jax
from fedvg_jax import config, data, resolve
from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.runs.assemble import tables
from fedvg_jax.runs.experiment import Population

DIGITS = data.load("digits")


def settings(**changes):
    return config.check(config.apply(Config(clients=6, alpha=1.0), changes, "test"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """An external set with some of the digits' classes and images of another size."""
    file = tmp_path_factory.mktemp("elsewhere") / "other.npz"
    y = np.repeat(np.arange(4), 60)
    np.savez(file, x=np.random.default_rng(0).integers(0, 256, (240, 16, 16), np.uint8), y=y)
    return str(file)


def tables_of(made, arrays, parts=None):
    """Returns the pool and the tables of rows, for the model and by default the partition of the settings."""
    parts = parts or resolve.data.make_partition(made, arrays)
    shared = resolve.data.make_shared(made, arrays, parts)
    whole = resolved.experiment(made, arrays.x.shape[1:], len(arrays.class_names))
    most_tested = int(made.test_ratio * len(arrays.y))
    whole = whole._replace(population=Population(arrays, parts, shared, most_tested))
    return tables.make_data(whole, whole.model.bound(None))


@pytest.mark.parametrize(
    "options",
    [
        {"holdout": "global", "validation.size": 50},
        {"partition": "shards", "validation.source": "clients:0.5"},
        {"validation.rho": 0.8, "corrupt.kind": "feature_noise"},
        {"validation.source": "npz", "val_ratio": 0.0},
    ],
    ids=str,
)
def test_shapes_do_not_depend_on_alpha_or_seeds(elsewhere, options):
    """Another alpha or seed therefore compiles nothing."""
    if options.get("validation.source") == "npz":
        options = options | {"validation.data_dir": elsewhere}
    first, *others = (
        tables_of(settings(**options | change), DIGITS)
        for change in ({}, {"alpha": 0.5}, {"partition_seed": 1}, {"seed": 1})
    )
    for other in others:
        chex.assert_trees_all_equal_shapes_and_dtypes(first, other)


def test_external_set_replaces_the_clients_validation_rows(elsewhere):
    made = settings(
        **{"validation.source": "npz", "validation.data_dir": elsewhere, "val_ratio": 0.0}
    )
    assert not any(map(len, resolve.data.make_partition(made, DIGITS).val))
    tables = tables_of(made, DIGITS)
    assert tables.pool.x.shape == (1797 + 240, 8, 8, 1)
    for table in (tables.scoring, tables.val):
        rows = tree.real_rows(table)
        # all once, and 50 of every class again
        assert len(rows) == 240 + 4 * 50 and rows.min() == 1797
    assert tables.test.max() < 1797


def test_corruption_does_not_change_validation_and_test_rows():
    made = settings(**{"corrupt.kind": "label_flip", "corrupt.clients": 0.5})
    parts = resolve.data.make_partition(made, DIGITS)
    y = np.asarray(tables_of(made, DIGITS).pool.y)
    bad = resolve.data.corrupt_clients(made)
    assert len(bad) == 3
    hit = np.concatenate([parts.train[k] for k in bad])
    np.testing.assert_array_equal(y[hit], 9 - DIGITS.y[hit])
    others = np.setdiff1d(np.arange(1797), hit)
    np.testing.assert_array_equal(y[others], DIGITS.y[others])


def scored(size, model, pixels, **fedvg):
    """Returns the number of scored rows of a D_val of `size` rows."""
    x = np.zeros((size + 8, pixels, pixels, 3), np.uint8)
    made = Arrays("images", x, np.arange(len(x), dtype=np.int32) % 3, ("a", "b", "c"), len(x))
    parts = Partition([np.arange(4)], [np.arange(8, 8 + size)], [np.arange(4, 8)])
    config = Config(clients=1, model=model, batch_size=4, fedvg=fedvg)
    return len(tree.real_rows(tables_of(config, made, parts).scoring))


@pytest.mark.parametrize(
    ("model", "pixels", "kept"), [("lenet5", 16, 9), ("resnet18", 64, 9), ("resnet18", 32, 8)]
)
def test_single_last_row_is_scored_unless_batchnorm_sees_a_single_value(model, pixels, kept):
    """LeNet-5's layers have maps of several pixels.

    ResNet-18's last maps are 2 x 2 at 64 pixels, and 1 x 1 at 32 pixels, where the published code raises."""
    assert scored(9, model, pixels) == kept
    assert scored(9, model, pixels, mode="eval") == 9
    assert scored(8, model, pixels) == 8


def test_max_rows_holds_for_named_and_for_given_data():
    config = settings(max_rows=300)
    given, named = fedvg_jax.simulation(config, data=DIGITS), fedvg_jax.simulation(config)
    chex.assert_trees_all_equal(given.data, named.data)
    assert len(given.data.pool.x) == 300


# --- minibatches of a single row


SIZES = [5, 4, 1]
"""Training rows of three clients, in minibatches of 2."""


def num_steps(task=None, **settings):
    """Local steps of each client in a round of one epoch."""
    made = Config(clients=3, join_ratio=1.0, local_epochs=1, **{"batch_size": 2} | settings)
    *train, _ = np.split(np.arange(20, dtype=np.int32), np.cumsum(SIZES))
    parts = Partition(train, *[[np.arange(10, 12, dtype=np.int32)] * 3] * 2)
    program = resolved.program(made, task=task)
    whole = resolved.experiment(made, task=task)
    whole = whole._replace(population=Population(DIGITS, parts, None, 0))
    training = tables.make_training(whole, program)
    schedule = tables.make_schedule(whole, program, training)(0)
    return [int(schedule.num_steps[list(schedule.clients).index(client)]) for client in range(3)]


def test_single_rows_are_trained_on_except_where_batchnorm_is_undefined_or_by_the_setting():
    assert num_steps() == [3, 2, 1]
    assert num_steps(worlds.TASK) == num_steps(reference="single-rows") == [2, 2, 0]
    assert num_steps(batch_size=1) == SIZES
    with one_line("--batch-size"):
        num_steps(worlds.TASK, batch_size=1)
