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
    "Int64": {"age": pandas.array(LABELS, dtype="Int64"), "flag": AGE},
    "objects": {"age": np.array(AGE.tolist(), object), "flag": np.array(FLAG.tolist(), object)},
    "sparse": {"age": pandas.arrays.SparseArray(LABELS), "flag": FLAG},
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_frame_is_the_matrix_of_its_numbers(kind):
    columns = [np.asarray(column, float) for column in NUMBERS[kind].values()]
    x = user_data.as_arrays((pandas.DataFrame(NUMBERS[kind]), LABELS)).x
    np.testing.assert_array_equal(x, np.column_stack(columns))
    assert x.dtype.kind in "if"


REFUSED = {
    "texts and numbers": pandas.DataFrame({"age": AGE, "city": list("abca")}),
    "dates": pandas.DataFrame({"age": AGE, "day": pandas.date_range("2026-01-01", periods=4)}),
    "missing": pandas.DataFrame({"age": pandas.array([1, None, 2, 3], dtype="Int64")}),
    "a sparse matrix": scipy.csr_matrix(np.eye(4)),
    "rows of several lengths": np.array([np.ones(2), np.ones(3)] * 2, object),
    "texts": np.array(["a", "b", "a", "b"]),
    "masked rows": np.ma.masked_array(AGE, FLAG),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_array_of_numbers_is_refused(kind):
    for name, given in {"x": (REFUSED[kind], LABELS), "y": (AGE, REFUSED[kind])}.items():
        with usage_error(f"data: {name} "):
            user_data.as_arrays(given)


@pytest.mark.parametrize("dtype", ["Int64", object])
def test_labels_of_a_column_are_classes(dtype):
    arrays = user_data.as_arrays((AGE, pandas.Series(LABELS.tolist(), dtype=dtype)))
    assert arrays.y.tolist() == LABELS.tolist() and arrays.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    "labels",
    [FLAG, LABELS.astype(float), np.eye(3)[LABELS], LABELS - 1],
    ids=["booleans", "floats", "one-hot", "negative"],
)
def test_labels_of_another_form_are_refused(labels):
    data = np.repeat(AGE, 10)[:, None], np.repeat(labels, 10, axis=0)
    with usage_error("class labels"):
        fv.simulation(fv.Config(clients=1, model="linear", partition="iid"), data=data)


TEXTS = ["b", "a", "c", "a"]
GROUPS = {
    "a list": TEXTS,
    "a column of arrays": np.array(TEXTS)[:, None],
    "objects": np.array(TEXTS, object),
    "category": pandas.Series(TEXTS).astype("category"),
    "Int64": pandas.Series([5, 3, 7, 3], dtype="Int64"),
    "StringDType": np.array(TEXTS, np.dtypes.StringDType()),
}


def grouped(groups):
    return user_data.as_arrays(fv.Arrays("rows", AGE, AGE, (), 4, groups))


@pytest.mark.parametrize("kind", GROUPS)
def test_groups_are_integers_or_strings_however_they_are_stored(kind):
    groups = grouped(GROUPS[kind]).groups
    assert groups.tolist() == [1, 0, 2, 0] and groups.dtype == np.int32


@pytest.mark.parametrize("groups", [AGE, np.array(["a", None, "b", "a"], object)])
def test_other_groups_are_refused_with_what_makes_strings_of_them(groups):
    with usage_error("groups", "str(group)"):
        grouped(groups)


def test_a_model_is_evaluated_on_frames_as_on_their_arrays():
    x, y = np.repeat(AGE, 10)[:, None], np.repeat(LABELS, 10)
    sim = fv.simulation(fv.Config(clients=1, model="linear", partition="iid"), data=(x, y))
    frames = pandas.DataFrame(x, columns=["age"]), pandas.Series(y)
    arrays = fv.evaluate(sim, sim.state.variables, (x, y))
    assert fv.evaluate(sim, sim.state.variables, frames) == arrays
    with usage_error("x must be numbers"):
        fv.evaluate(sim, sim.state.variables, (pandas.DataFrame({"age": ["a"] * 4}), LABELS))
