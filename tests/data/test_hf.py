"""Hugging Face data sets: tiny ones, saved by the library and read by ours."""

import os

import numpy as np
import pytest
from support.files import assert_rows, load_twice, pixels, png, usage_error

from fedvg_jax import data

library = pytest.importorskip("datasets", reason="needs the hf extra")

X = pixels(9, 8, 10, 3)
WRITERS = ["f01", "f02", "f01", "f03", "f02", "f01", "f03", "f03", "f01"]
NAMES = ["ant", "bee", "cat"]
SPLITS = {"test": range(7, 9), "train": range(5), "validation": range(5, 7)}


def rows(numbers, x=X):
    """Returns a data set of these rows with the columns image, label and writer."""
    features = {
        "image": library.Image(),
        "label": library.ClassLabel(names=NAMES),
        "writer": library.Value("string"),
    }
    content = {
        "image": [{"bytes": png(x[i]), "path": None} for i in numbers],
        "label": [i % 3 for i in numbers],
        "writer": [WRITERS[i] for i in numbers],
    }
    return library.Dataset.from_dict(content, features=library.Features(features))


def load(folder, **columns):
    return data.load(f"hf:{folder}", columns=columns)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the same data set by `save_to_disk` ("saved") and as parquet files ("files")."""
    folder = tmp_path_factory.mktemp("hf")
    sets = library.DatasetDict({name: rows(numbers) for name, numbers in SPLITS.items()})
    sets.save_to_disk(folder / "saved")
    for name, numbers in SPLITS.items():
        path = folder / "files" / "data" / f"{name}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows(numbers).to_parquet(path)
    return folder


@pytest.mark.parametrize("name", ["saved", "files"])
def test_set_is_pooled_as_train_validation_test(saved, name):
    arrays = load_twice(f"hf:{name}", saved)
    assert_rows(arrays, X, np.arange(9) % 3)
    assert (arrays.name, arrays.num_train, arrays.class_names) == (name, 5, tuple(NAMES))
    assert arrays.groups is None


def test_values_of_the_group_column_are_numbered(saved):
    groups = load(saved / "saved", group="writer").groups
    assert [f"f0{1 + group}" for group in groups] == WRITERS


def test_single_split_with_grey_images_and_text_labels_is_read(tmp_path):
    grey = X[..., :1]
    dataset = rows(range(4), grey).remove_columns("label").add_column("label", ["b", "a", "b", "c"])
    dataset.save_to_disk(tmp_path / "set")
    arrays = load(tmp_path / "set")
    assert_rows(arrays, grey[:4], [1, 0, 1, 2])
    assert arrays.class_names == ("a", "b", "c")
    rows(range(2), [grey[0], X[1]]).save_to_disk(tmp_path / "mixed")
    mixed = load(tmp_path / "mixed").x  # a grey image beside one in colour is repeated
    np.testing.assert_array_equal(mixed, [np.broadcast_to(grey[0], (8, 10, 3)), X[1]])


def test_unreadable_data_set_is_refused_in_one_line(tmp_path):
    dataset = rows(range(3)).rename_column("label", "fine")
    dataset.save_to_disk(tmp_path / "set")
    assert load(tmp_path / "set").class_names == tuple(NAMES)
    other = library.Dataset.from_dict({"x": ["a", "b"], "label": [0, None]})
    other.save_to_disk(tmp_path / "missing")
    with usage_error("column label"):
        load(tmp_path / "missing")
    os.truncate(next((tmp_path / "set").glob("*.arrow")), 500)
    with usage_error("set"):
        load(tmp_path / "set")


def test_a_split_without_labels_is_named_and_can_be_left_out(tmp_path):
    test = rows(SPLITS["test"]).map(lambda row: row | {"label": -1})
    splits = library.DatasetDict({"train": rows(SPLITS["train"]), "test": test})
    splits.save_to_disk(tmp_path / "set")
    with usage_error("labels must be", "-1"):
        load(tmp_path / "set")
    got = data.load(f"hf:{tmp_path / 'set'}", splits="train")
    np.testing.assert_array_equal(got.x, X[:5])
