"""Data frames, sparse matrices and objects are taken as the numbers they hold, or refused with advice that fits."""

import numpy as np
import pytest
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax.data import user_data

pandas = pytest.importorskip("pandas")
scipy = pytest.importorskip("scipy.sparse")

AGE, FLAG, LABELS = (
    np.array([30.0, 41.5, 7.0, 68.0]),
    np.array([True, False, False, True]),
    np.array([0, 1, 2, 0]),
)
NUMBERS = {
    "booleans and floats": {"age": AGE, "flag": FLAG},
    "booleans and integers": {"age": LABELS, "flag": FLAG},
    "integers and floats": {"age": LABELS, "flag": AGE},
    "Int64": {"age": pandas.array(LABELS, dtype="Int64"), "flag": AGE},
    "Float64": {"age": pandas.array(AGE, dtype="Float64"), "flag": FLAG},
    "boolean": {"age": AGE, "flag": pandas.array(FLAG, dtype="boolean")},
    "objects": {"age": np.array(AGE.tolist(), object), "flag": np.array(FLAG.tolist(), object)},
    "sparse": {"age": pandas.arrays.SparseArray(LABELS), "flag": FLAG},
}
OTHERS = {
    "text of numbers": np.array(["1", "2", "3", "4"], object),
    "category": pandas.Categorical([1, 2, 3, 1]),
    "dates": pandas.date_range("2026-01-01", periods=4),
    "durations": pandas.to_timedelta(range(4), "s"),
    "complex numbers": AGE * 1j,
    "missing texts": np.array(["a", None, "b", "a"], object),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_frame_is_the_matrix_of_its_numbers(kind):
    frame = pandas.DataFrame(NUMBERS[kind])
    x = user_data.as_arrays((frame, LABELS)).x
    np.testing.assert_array_equal(
        x, np.column_stack([np.asarray(column, float) for column in NUMBERS[kind].values()])
    )
    assert x.dtype.kind in "if"


@pytest.mark.parametrize("kind", OTHERS)
def test_a_column_of_other_values_is_named(kind):
    with usage_error("x", "column 'city'"):
        user_data.as_arrays((pandas.DataFrame({"age": AGE, "city": OTHERS[kind]}), LABELS))


def test_missing_numbers_of_a_frame_are_not_finite():
    with usage_error("x", "row 1"):
        user_data.as_arrays(
            (pandas.DataFrame({"age": pandas.array([1, None, 2, 3], dtype="Int64")}), LABELS)
        )


ROWS = {
    "a sparse matrix": scipy.csr_matrix(np.eye(4)),
    "rows of several lengths": np.array([np.ones(2), np.ones(3)] * 2, object),
    "texts": np.array(["a", "b", "a", "b"]),
    "masked rows": np.ma.masked_array(AGE, FLAG),
}


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("kind", ROWS)
def test_what_is_no_array_of_numbers_is_refused(kind, name):
    with usage_error(f"data: {name} must be"):
        user_data.as_arrays((ROWS[kind], LABELS) if name == "x" else (AGE, ROWS[kind]))


@pytest.mark.parametrize(
    "labels",
    [pandas.Series(LABELS, dtype="Int64"), pandas.Series(LABELS.tolist(), dtype=object)],
    ids=["Int64", "object"],
)
def test_labels_of_a_column_are_classes(labels):
    arrays = user_data.as_arrays((AGE, labels))
    assert arrays.y.tolist() == LABELS.tolist() and arrays.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    "labels",
    [FLAG, LABELS.astype(float), np.eye(3)[LABELS], LABELS[:, None], LABELS - 1],
    ids=["booleans", "floats", "one-hot", "a column", "negative"],
)
def test_labels_of_another_form_are_refused(labels):
    data = np.repeat(AGE, 10)[:, None], np.repeat(labels, 10, axis=0)
    with usage_error("class labels"):
        fv.simulation(fv.Config(clients=1, model="linear", partition="iid"), data=data)


def test_labels_from_one_say_that_class_0_has_no_row(caplog):
    x = np.random.default_rng(0).normal(size=(60, 3))
    fv.run(
        fv.Config(clients=2, rounds=1, model="linear", partition="iid"),
        data=(x, np.arange(60) % 3 + 1),
    )
    assert [message for message in caplog.messages if "class 0" in message]


GROUPS = {
    "objects": np.array(["b", "a", "c", "a"], object),
    "column": pandas.Series(["b", "a", "c", "a"]),
    "category": pandas.Series(["b", "a", "c", "a"]).astype("category"),
    "Int64": pandas.Series([5, 3, 7, 3], dtype="Int64"),
    "StringDType": np.array(["b", "a", "c", "a"], np.dtypes.StringDType()),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_groups_are_integers_or_strings_however_they_are_stored(kind):
    arrays = user_data.as_arrays(fv.Arrays("rows", AGE, LABELS, ("a", "b", "c"), 4, GROUPS[kind]))
    assert arrays.groups.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    "groups", [AGE, np.array(["a", None, "b", "a"], object)], ids=["floats", "missing"]
)
def test_other_groups_are_refused_with_what_makes_strings_of_them(groups):
    with usage_error("groups", "str(group)"):
        user_data.as_arrays(fv.Arrays("rows", AGE, LABELS, ("a", "b", "c"), 4, groups))


def test_groups_are_asked_for_as_python_gives_them():
    for settings in ({"partition": "group"}, {"partition": "iid", "holdout": "group"}):
        with usage_error("group", "Arrays(..., groups="):
            fv.simulation(
                fv.Config(clients=1, model="linear", min_samples=1, **settings),
                data=(AGE[:, None], LABELS),
            )


def test_a_frame_is_evaluated_as_its_matrix():
    x, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1] > 0})
    sim = fv.simulation(fv.Config(clients=2, model="linear", partition="iid"), data=(frame, y))
    expected = fv.evaluate(sim, sim.state.variables, (frame.to_numpy(float), y))
    assert fv.evaluate(sim, sim.state.variables, (frame, pandas.Series(y))) == expected
