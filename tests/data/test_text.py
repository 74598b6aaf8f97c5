"""Texts, divided into rows of characters, and the tables of scikit-learn."""

import numpy as np
import pytest

from fedvg_jax import data
from fedvg_jax.data.readers import text


def test_shipped_texts_are_ascii_and_each_is_a_group():
    arrays = data.load("literature")
    assert (
        arrays.x.shape == arrays.y.shape == (3541, text.LENGTH)
        and arrays.x.dtype == arrays.y.dtype == np.int32
    )
    assert arrays.class_names[:3] == ("\\n", "space", "!") and len(arrays.class_names) == 64
    assert all(name.isascii() for name in arrays.class_names)
    counts = np.bincount(arrays.groups)
    assert len(counts) == 20 and counts.min() == 68 and counts.max() == 202


@pytest.mark.quick
def test_labels_are_the_next_characters():
    arrays = data.load("literature")
    np.testing.assert_array_equal(arrays.y[:, :-1], arrays.x[:, 1:])
    same_text = arrays.groups[1:] == arrays.groups[:-1]
    np.testing.assert_array_equal(arrays.y[:-1, -1][same_text], arrays.x[1:, 0][same_text])


@pytest.mark.parametrize("name", text.FILES)
def test_tables_equal_those_of_scikit_learn(name):
    from sklearn import datasets as sklearn_datasets

    bunch = getattr(sklearn_datasets, f"load_{name}")()
    expected = bunch.data, bunch.target, np.array(bunch.target_names, str)
    for part, of_scikit_learn in zip(text.read_csv(name), expected, strict=True):
        np.testing.assert_array_equal(part, of_scikit_learn)


@pytest.mark.parametrize("name", text.TABLES)
def test_columns_of_a_table_have_mean_0_and_deviation_1(name):
    arrays = data.load(name)
    measurements, labels, names = text.read_csv(name)
    assert arrays.x.dtype == np.float32 and arrays.x.shape == measurements.shape
    np.testing.assert_allclose(arrays.x.mean(0, np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(arrays.x.std(0, dtype=np.float64), 1, atol=1e-6)
    np.testing.assert_array_equal(arrays.y, labels)
    assert arrays.class_names == names
