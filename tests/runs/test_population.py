"""Partition, validation set and corrupt rows from a config: combinations, shapes and descriptions."""

import json
from dataclasses import replace

import jax
import numpy as np
import programs
import pytest
import worlds
from files import usage_error

import fedvg_jax
from fedvg_jax import config, data
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.data.readers import npz
from fedvg_jax.models.resnet import ResNet
from fedvg_jax.runs import chunks, population, registry, simulation

DIGITS = data.load("digits")


def settings(folder, **changes):
    return config.check(config.apply(Config(cache_dir=folder, clients=6, alpha=1.0), changes, "test"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """An external set with some of the digits' classes and images of another size."""
    file = tmp_path_factory.mktemp("elsewhere") / "other.npz"
    y = np.repeat(np.arange(4), 60)
    np.savez(file, x=np.random.default_rng(0).integers(0, 256, (240, 16, 16), np.uint8), y=y)
    return str(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "file"}, "--partition-file FILE"),
        ({"partition_file": "a.npz"}, "--partition-file is not used by --partition dirichlet"),
        ({"partition": "official", "split": "global"}, "split global"),
        ({"partition": "balanced_client", "clients": 1}, "at least 2 clients"),
        ({"val_ratio": 0.0}, "external --validation.source"),
        ({"validation.source": "npz"}, "--validation.data-dir"),
        ({"validation.clients": 0.5, "validation.source": "npz", "validation.data_dir": "x"}, "--validation.clients"),
        ({"validation.size": 50, "validation.fraction": 0.5}, "give one"),
        ({"validation.size": 1}, "validation.size must be >= 2"),
        ({"corrupt.kind": "rotate", "corrupt.clients": 0.01}, "clients is none; use > 0.0833333"),
        ({"corrupt.kind": "rotate", "attack.kind": "noise", "attack.clients": 0.5}, "make them equal"),
    ],
)
def test_inconsistent_settings_are_refused_in_one_line(tmp_path, changes, message):
    with usage_error(message):
        settings(tmp_path, **changes)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": "global", "validation.size": 50, "select": "held_out"},
        {"partition": "shards", "validation.clients": 0.5},
        {"validation.rho": 0.8, "corrupt.kind": "rotate90"},
        {"validation.source": "npz", "val_ratio": 0.0},
    ],
    ids=str,
)
def test_shapes_do_not_depend_on_alpha_or_seeds(tmp_path, elsewhere, options):
    """Another alpha or seed therefore compiles nothing."""
    if options.get("validation.source") == "npz":
        options = options | {"validation.data_dir": elsewhere}
    result = []
    for change in ({}, {"alpha": 0.5}, {"partition_seed": 1}, {"seed": 1}):
        made = settings(tmp_path, **options | change)
        made_data = simulation.make_data(made, DIGITS, population.make_partition(made, DIGITS))
        result.append(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), made_data))
    assert all(shapes == result[0] for shapes in result)


def test_external_set_replaces_the_clients_validation_rows(tmp_path, elsewhere):
    made = settings(tmp_path, **{"validation.source": "npz", "validation.data_dir": elsewhere, "val_ratio": 0.0})
    parts = population.make_partition(made, DIGITS)
    assert not any(map(len, parts.val))
    tables = simulation.make_data(made, DIGITS, parts)
    assert tables.pool.x.shape == (1797 + 240, 8, 8, 1)
    for table in (tables.scoring, tables.val):
        rows = np.asarray(table)[np.asarray(table) >= 0]
        assert len(rows) == 240 + 4 * 50 and rows.min() == 1797  # all once, and 50 of every class again
    assert np.asarray(tables.test).max() < 1797


def test_corruption_does_not_change_validation_and_test_rows(tmp_path):
    made = settings(tmp_path, **{"corrupt.kind": "label_flip", "corrupt.clients": 0.5})
    parts = population.make_partition(made, DIGITS)
    y = np.asarray(simulation.make_data(made, DIGITS, parts).pool.y)
    bad = registry.corrupt_clients(made)
    assert len(bad) == 3
    hit = np.concatenate([parts.train[k] for k in bad])
    np.testing.assert_array_equal(y[hit], 9 - DIGITS.y[hit])
    others = np.setdiff1d(np.arange(1797), hit)
    np.testing.assert_array_equal(y[others], DIGITS.y[others])


def test_description_counts_partition_and_validation_set(tmp_path):
    made = settings(tmp_path, **{"validation.clients": 0.5, "validation.size": 20, "corrupt.kind": "label_flip"})
    parts = population.make_partition(made, DIGITS)
    description = population.describe(made, DIGITS, parts, population.make_shared(made, DIGITS, parts))
    assert description["partition"] == "dirichlet" and description["clients"] == 6
    clean = [np.bincount(DIGITS.y[client_rows], minlength=10).tolist() for client_rows in parts.train]
    assert description["counts"] == clean  # before any label was flipped
    assert description["validation"]["samples"] == 20 == sum(description["validation"]["counts"])
    assert len(description["validation"]["clients"]) == 3
    assert json.loads(json.dumps(description)) == description


@pytest.mark.parametrize("kinds", [("none", "noise"), ("rotate", "noise")])
def test_corrupt_rows_and_corrupt_updates_use_the_same_clients(tmp_path, kinds):
    made = settings(tmp_path, **{"corrupt.kind": kinds[0], "attack.kind": kinds[1]}, clients=20)
    assert config.num_corrupt(made) == 4
    alone = settings(tmp_path, **{"attack.kind": "noise"}, clients=20)
    assert registry.corrupt_clients(made).tolist() == registry.corrupt_clients(alone).tolist()


def test_partition_from_python_is_checked_and_lists_of_rows_are_split(tmp_path):
    made = settings(tmp_path)
    rows = np.array_split(np.random.default_rng(0).permutation(1797), 6)
    parts = population.take_partition(made, DIGITS, rows)
    for client_rows, train, val, test in zip(rows, *parts, strict=True):
        assert (
            set(client_rows) == {*train, *val, *test}
            and len(test) == len(client_rows) // 4
            and len(val) == len(client_rows) // 10
        )
    again = population.take_partition(made, DIGITS, tuple(parts))
    assert all(np.array_equal(a, b) for a, b in zip(again.train, parts.train, strict=True))
    wrong = {"holds 5 clients": rows[:5], "2 times": [*rows[:5], rows[0]], "no test row": parts._replace(test=[[]])}
    for message, given in wrong.items():
        with pytest.raises(UsageError, match=f"the partition given.*{message}"):
            population.take_partition(made, DIGITS, given)


def test_groups_of_an_npz_make_a_partition(tmp_path):
    x, y = np.zeros((270, 4, 4), np.uint8), np.arange(270) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y, groups=np.array([f"patient {i % 9}" for i in range(270)]))
    for _ in range(2):  # decoded, then from the cache
        arrays = data.load("npz", tmp_path / "a.npz", tmp_path / "cache")
        assert arrays.groups.dtype == np.int32 and np.array_equal(arrays.groups, np.arange(270) % 9)
    parts = population.make_partition(settings(tmp_path, partition="group", clients=9), arrays)
    assert all(set(client_rows % 9) == {k} for k, client_rows in enumerate(parts.train))
    np.savez(tmp_path / "b.npz", x=x, y=y, groups=np.linspace(0, 1, 270))
    with usage_error("b.npz: groups must be integers or strings [270]"):
        npz.load(tmp_path / "b.npz")


def scored(size, model="mlp", pixels=16, batch_size=4, task=None, **fedvg):
    """Returns the number of scored rows of a D_val of `size` rows."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (size + 8, pixels, pixels, 3), np.uint8)
    made = Arrays("images", x, np.arange(len(x), dtype=np.int32) % 3, ("a", "b", "c"), len(x))
    parts = Partition([np.arange(4)], [np.arange(8, 8 + size)], [np.arange(4, 8)])
    changed = replace(Config(), clients=1, model=model, batch_size=batch_size, fedvg=config.FedVG(**fedvg))
    return int((np.asarray(simulation.make_data(changed, made, parts, task=task).scoring) >= 0).sum())


@pytest.mark.parametrize(
    ("model", "pixels", "kept"),
    [("mlp", 16, 9), ("lenet5", 16, 9), ("resnet18", 64, 9), ("resnet18", 32, 8)],
)
def test_single_last_row_is_scored_unless_batchnorm_sees_a_single_value(model, pixels, kept, monkeypatch):
    """The first model has no BatchNorm, and LeNet-5's layers have maps of several pixels.

    ResNet-18's last maps are 2 x 2 at 64 pixels, and 1 x 1 at 32 pixels, where the published code raises. So are those
    of the network here, of half as many blocks."""

    def resnet18(classes, **options):
        return ResNet(classes, (1, 1, 1, 1), width=4, **options)

    monkeypatch.setitem(registry.MODELS, "resnet18", registry.Model(resnet18))
    assert scored(9, model, pixels) == kept
    assert scored(9, model, pixels, mode="eval") == 9
    assert scored(8, model, pixels) == 8


def test_single_last_row_of_a_users_model_is_scored_unless_normalised_over_the_batch():
    assert scored(9, task=worlds.TASK) == 8
    assert scored(9, task=worlds.QUADRATIC) == 9


def test_resuming_with_other_external_validation_images_is_refused(tmp_path, monkeypatch):
    """The manifest has a digest of these images beside those of data and partition."""
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    file, y = tmp_path / "external.npz", np.arange(20) % 10
    x = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    np.savez(file, x=x, y=y)
    options = {"validation.source": "npz", "validation.data_dir": str(file), "val_ratio": 0.0, "checkpoint_every": 1}
    first = settings(tmp_path, rounds=1, out=str(tmp_path / "run"), local_epochs=1, **options)
    fedvg_jax.run(first)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert {"data", "partition", "validation"} <= manifest.keys()
    x[0, 0, 0] ^= 1
    np.savez(file, x=x, y=y)
    with pytest.raises(UsageError, match=r"another validation "):
        fedvg_jax.run(replace(first, rounds=2, out=None, resume=str(tmp_path / "run")))


def test_max_rows_holds_for_named_and_for_given_data(tmp_path):
    settings_ = settings(tmp_path, max_rows=300)
    named = simulation.load_data(settings_)
    assert len(named.y) == 300
    given = fedvg_jax.simulation(settings_, data=DIGITS)
    whole = fedvg_jax.simulation(settings_)
    for one, other in zip(jax.tree.leaves(given.data), jax.tree.leaves(whole.data), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(given.data.pool.x) == 300
