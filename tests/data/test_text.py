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
    arrays, (x, y, names) = data.load(name), text.read_csv(name)
    np.testing.assert_array_equal(x, bunch.data)
    np.testing.assert_array_equal(y, bunch.target)
    assert names == arrays.class_names == tuple(map(str, bunch.target_names))
    np.testing.assert_array_equal(arrays.y, y)
    if name != "digits":
        assert arrays.x.dtype == np.float32
        np.testing.assert_allclose(arrays.x.mean(0, np.float64), 0, atol=1e-6)
        np.testing.assert_allclose(arrays.x.std(0, dtype=np.float64), 1, atol=1e-6)
