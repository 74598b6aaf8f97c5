"""Data and partitions passed as arrays: any rank and dtype is accepted, unusable arrays are refused in one line."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from support.files import one_line

import fedvg_jax as fv
from fedvg_jax import config
from fedvg_jax.data import user_data
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.record import provenance

FLOATS, IMAGES = np.ones((6, 3)), np.zeros((6, 8, 8, 1), np.uint8)
LABELS, TARGETS = np.array([0, 1, 2, 0, 1, 2]), np.linspace(0, 1, 6)
ROTATED = {"corrupt.kind": "rotate90", "corrupt.clients": 1.0}
CHANNELS_FIRST = np.zeros((6, 3, 32, 32), np.uint8)
TOKENS = np.arange(12).reshape(6, 2) % 3
PARTS = ([[0], [1, 2]], [[3], []], [[], [4]])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("bool", (6,)), ("uint8", (6,)), ("int64", (6, 3)), ("float16", (6, 2, 3)), ("float64", (6, 2, 2, 2, 2))],
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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FLOATS, "pair .* got ndarray"),
        ((FLOATS, TARGETS[1:]), "x has 6 rows and y 5"),
        (([[0.0], [1.0, 2.0]], LABELS[:2]), "x must be an array .*every row of one shape"),
        ((-FLOATS * 1e39, LABELS), r"floats of x must be at most 3.4e\+38"),
        ((FLOATS.astype(np.longdouble), LABELS), r"x must have at most 64 bits; .*astype"),
        ((FLOATS, LABELS + 2**40), r"integers of y must be below 2\*\*31"),
        (fv.Arrays("mine", FLOATS, LABELS, ("a", "b"), 6), r"labels must be 0..1, one for each class name; got 0..2"),
    ],
)
def test_unusable_data_are_refused_in_one_line(data, message):
    with one_line(message):
        user_data.as_arrays(data)


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ((FLOATS, LABELS), {"normalise": "half"}, "normalise half is for images"),
        ((np.zeros((6, 2, 2, 2), np.uint8), LABELS), {"normalise": "imagenet"}, "takes 1 or 3 channels"),
        ((np.zeros((6, 4, 4, 2), np.uint8), LABELS), {"model": "vit_s16"}, "vit_s16 is for images of 1 or 3 channels"),
        (
            (CHANNELS_FIRST, LABELS),
            {"model": "resnet18"},
            r"channels of x seem to be first.*np.moveaxis\(x, 1, -1\)",
        ),
        ((CHANNELS_FIRST[:, :1], LABELS), {"model": "cnn"}, "model cnn takes images .*np.moveaxis"),
        ((CHANNELS_FIRST, LABELS), {"augment": "flip"}, "augment flip takes images .*np.moveaxis"),
        ((CHANNELS_FIRST, LABELS), ROTATED, "corrupt.kind rotate90 takes images .*np.moveaxis"),
        ((CHANNELS_FIRST[:, 0], LABELS), {"model": "resnet18"}, r"use x\[..., None\] for grey ones, mlp or linear"),
        ((CHANNELS_FIRST, LABELS), {"normalise": "columns"}, "normalise columns takes tables and float images"),
        ((FLOATS, LABELS), {"augment": "flip"}, r"augment flip is for images"),
        ((TARGETS, LABELS), {}, r"mlp takes rows \[T, D\], x is float64 \[6\]; use x\[:, None\]"),
        ((FLOATS, TARGETS), {}, r"mlp needs class labels, integers \[T\] from 0; y of data is float64 \[6\]; "),
        ((FLOATS, np.eye(6)), {}, r"float64 \[6, 6\]; one-hot rows are labels y.argmax\(1\); otherwise give run"),
        ((FLOATS, LABELS / 1), {}, r"labels are y.astype\(int\); otherwise"),
        ((FLOATS, LABELS[:, None]), {}, r"labels are y\[:, 0\]; otherwise"),
        (
            (FLOATS, LABELS + 2**16),
            {},
            r"\[6\] with values 65536 to \d+, of which labels are 0..65535",
        ),
        ((TOKENS, TOKENS), {"model": "gru"}, "data has no class_names; .*Arrays.* one name per character"),
        ((IMAGES, LABELS), {"clients": 3}, "train holds 2 clients, clients is 3"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused_in_one_line(data, settings, message):
    settings = {"clients": 2, "join_ratio": 1.0} | settings
    with one_line(message):
        simulation.simulation(config.apply(fv.Config(), settings, "test"), data=data, partition=PARTS)


def test_columns_are_scaled_by_the_training_rows_of_all_clients_alone():
    x = np.random.default_rng(0).normal([3, -900, 4e5], [1, 50, 2e4], (6, 3))
    settings = fv.Config(normalise="columns", clients=2, join_ratio=1.0, model="linear")
    sim = simulation.simulation(settings, data=(x, LABELS), partition=([[0], [1, 2]], [[3], []], [[5], [4]]))
    np.testing.assert_allclose(sim.data.pool.x, (x - x[:3].mean(0)) / x[:3].std(0), rtol=1e-5)


@pytest.mark.parametrize("normalise", ["none", "columns"])
def test_data_digest_is_of_what_was_read_and_equal_for_every_partition(normalise):
    x = np.random.default_rng(0).normal(3, 50, (60, 3))
    made = fv.Config(normalise=normalise, clients=2, join_ratio=1.0, model="linear", partition="iid")
    digests = []
    for seed in (0, 1):
        sim = simulation.simulation(dataclasses.replace(made, partition_seed=seed), data=(x, np.arange(60) % 3))
        digests.append(provenance.sources(sim.arrays, sim.partition, sim.data.pool, {}, ()))
    first, second = digests
    assert first["data"] == second["data"] and first["partition"] != second["partition"]


def test_a_run_that_diverges_names_the_range_of_large_inputs_and_scaled_ones_train():
    x = np.random.default_rng(0).normal(0, 1, (80, 2))
    data = x * [1.0, 2e4], np.arange(80) % 2
    settings = fv.Config(clients=2, rounds=2, model="mlp", partition="iid", weighting="uniform")
    with pytest.raises(fv.DivergedError, match=r"x is from -\d.* to \d.*: scale it, as --normalise columns does"):
        fv.run(settings, data=data)
    assert fv.run(dataclasses.replace(settings, normalise="columns"), data=data).records[-1]["train_loss"] < 1


def test_sequences_with_names_of_their_characters_fit_the_model_that_asks_for_them():
    arrays = user_data.as_arrays(fv.Arrays("mine", TOKENS, TOKENS, ("a", "b", "c"), 6))
    user_data.check_model_fits(arrays, fv.Config(model="gru", partition="iid"))


@pytest.mark.parametrize(("y", "names"), [(TOKENS, ("0", "1", "2")), (TARGETS, ())], ids=["characters", "targets"])
def test_groups_are_one_per_row_whatever_the_labels(y, names):
    for groups in (["b", "a", "b", "c", "a", "a"], [7, 5, 7, 9, 5, 5], np.array([[1], [0], [1], [2], [0], [0]])):
        arrays = user_data.as_arrays(fv.Arrays("mine", TOKENS, y, names, 6, groups))
        assert arrays.groups.tolist() == [1, 0, 1, 2, 0, 0] and arrays.groups.dtype == np.int32
    for wrong in (np.arange(5), np.arange(12).reshape(6, 2), np.ones(6), [None] * 6):
        with pytest.raises(fv.UsageError, match=r"data: groups must be integers or strings \[6\], one per row; got"):
            user_data.as_arrays(fv.Arrays("mine", TOKENS, y, names, 6, wrong))


def test_labels_below_zero_are_refused():
    with pytest.raises(
        fv.UsageError,
        match=r"values -1 to 1, of which labels are 0..65535; labels are np.unique\(y, return_inverse=True\)\[1\]; oth",
    ):
        user_data.class_labels(user_data.as_arrays((FLOATS, LABELS - 1)), "model mlp", "use another")


def test_bfloat16_is_read_as_float32():
    assert user_data.as_arrays((FLOATS.astype(jnp.bfloat16), LABELS)).x.dtype == np.float32


def test_classes_of_a_named_model_without_rows_draw_one_line(caplog):
    for y in (LABELS + 1, LABELS * 50, LABELS):
        user_data.check_model_fits(user_data.as_arrays((FLOATS, y)), fv.Config(model="mlp"))
    assert [line.partition(" of data")[0] for line in caplog.messages] == ["1 of 4 classes", "98 of 101 classes"]
    with one_line(r"got <U1 \[6\]; labels are np.unique"):
        user_data.as_arrays((FLOATS, LABELS.astype("U1")))


@pytest.mark.parametrize(("name", "value"), [("x", np.nan), ("y", -np.inf)])
def test_row_with_a_non_finite_value_is_named(name, value):
    x, y = FLOATS.copy(), TARGETS.copy()
    (x if name == "x" else y)[4] = value
    with pytest.raises(fv.UsageError, match=f"data: row 4 of {name} is not finite; correct or remove it"):
        user_data.as_arrays((x, y))


def test_a_masked_row_is_refused_with_what_to_do():
    x = np.ma.masked_array(np.ones((4, 2)), mask=np.arange(8).reshape(4, 2) == 5)
    with pytest.raises(fv.UsageError, match=r"data: x has masked rows; fill them with x\.filled"):
        user_data.as_arrays((x, np.arange(4)))
    assert user_data.as_arrays((x[:2], np.arange(2))).x.shape == (2, 2)
