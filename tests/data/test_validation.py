"""The shared validation set D_val: clients' rows, external sets and their class maps, subsets, imbalance, noise."""

import itertools

import numpy as np
import pytest
from support.files import write_stl

from fedvg_jax.data import validation
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import partitioners
from fedvg_jax.data.readers.cifar_stl10 import CLASS_NAMES, CLASS_NAMES_100, STL_NAMES

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(10, dtype=np.int32), 60)
ARRAYS = Arrays("ten", RNG.integers(0, 256, (600, 4, 4, 3), np.uint8), LABELS, CLASS_NAMES, 600)
PARTS = partitioners.draw_partition(ARRAYS.y, num_clients=8, alpha=5.0)


def shared(share=1.0, seed=42):
    return validation.from_clients(ARRAYS, PARTS, share, 0.1, seed)


def shared_rows(rows):
    """Returns a D_val of these rows."""
    return validation.Shared(ARRAYS.x, ARRAYS.y, np.asarray(rows, np.int32), len(rows), None)


# --- clients' rows


def test_validation_set_is_the_clients_rows_in_client_order():
    result = shared()
    np.testing.assert_array_equal(result.rows, np.concatenate(PARTS.val))
    assert result.x is ARRAYS.x and result.y is ARRAYS.y
    assert result.most == 60 and result.clients is None


def test_share_of_clients_is_chosen_by_seed():
    result = shared(0.3)
    first, second = result.clients  # 0.3 of 8, rounded
    np.testing.assert_array_equal(result.rows, [*PARTS.val[first], *PARTS.val[second]])
    assert len({tuple(shared(0.3, seed).clients) for seed in range(9)}) > 3
    assert len(shared(1e-9).clients) == 1


# --- external sets


def test_official_order_has_the_published_counts():
    """STL-10: nine classes of 500 and 50 copies each, 4,950 in the paper. Never more than 5,000.

    CIFAR-100: seven classes of 500 and 50 copies of each of three targets, 1,050 + 1,550 + 1,050 = 3,650."""

    def order(labels, has_copies=True):
        return validation.order(labels, has_copies, np.random.default_rng(0))

    stl = np.repeat(np.delete(np.arange(10), 6), 500)
    cifar = np.repeat([1, 3, 5], [1000, 1500, 1000])
    for labels, per_class in ((stl, [550] * 9), (cifar, [1050, 1550, 1050])):
        rows, classes = order(labels), np.unique(labels)
        assert [(labels[rows] == c).sum() for c in classes] == per_class
        assert {*np.bincount(rows, minlength=len(labels))} == {1, 2}
        # class after class, then all at random
        first = labels[rows[: 50 * len(per_class)]]
        np.testing.assert_array_equal(first, np.repeat(classes, 50))
        assert sorted(order(labels, False)) == [*range(len(labels))]
    assert [len(order(labels)) for labels in (np.repeat([0, 1], 4000), np.zeros(20))] == [5000, 40]


SEVEN = {"bus": 1, "motorcycle": 1, "leopard": 3, "lion": 3, "tiger": 3, "wolf": 5, "fox": 5}
NINE = {"airplane": 0, "car": 1, "bird": 2, "cat": 3, "deer": 4, "dog": 5, "horse": 7}
NINE |= {"ship": 8, "truck": 9}
"""Labels of CIFAR-10: automobile is 1, cat 3, dog 5."""


def write_external(folder, source, names):
    """Writes an external set of three training images per class and some test images; returns its training rows."""
    if source == "stl10":
        x, y = write_stl(folder)
        return x[:3], y[:3]
    y = np.repeat(np.arange(len(names)), 3)
    x = RNG.integers(0, 256, (len(y), 4, 4, 3), np.uint8)
    arrays = {"train_images": x, "train_labels": y, "class_names": np.array(names)}
    np.savez(folder / f"{source}.npz", **arrays, test_images=x[:5], test_labels=np.zeros(5, int))
    return x, y


@pytest.mark.parametrize(
    ("source", "names", "all_classes", "expected"),
    [
        ("cifar100", CLASS_NAMES_100, False, SEVEN),
        ("cifar100", CLASS_NAMES_100, True, SEVEN | {"pickup_truck": 9}),
        ("stl10", STL_NAMES, False, NINE),
        ("npz", CLASS_NAMES[::-1], False, {name: c for c, name in enumerate(CLASS_NAMES)}),
    ],
    ids=["cifar100", "cifar100 all", "stl10", "npz"],
)
def test_classes_are_mapped_by_name_and_unmapped_ones_are_left_out(
    tmp_path, source, names, all_classes, expected
):
    outside_x, outside_y = write_external(tmp_path, source, names)
    target = ARRAYS._replace(x=np.zeros((600, *outside_x.shape[1:]), np.uint8))
    x, y = validation.outside_images(source, tmp_path, target, all_classes)
    outside_names = [names[label] for label in outside_y]
    kept = np.array([name in expected for name in outside_names])
    assert kept.any()
    assert [*y] == [expected[name] for name in outside_names if name in expected]
    np.testing.assert_array_equal(x, outside_x[kept])


def test_larger_images_are_averaged_and_grey_images_become_rgb():
    """Pillow's bilinear filter is a triangle two target pixels wide.

    It does not change constant images, and preserves the mean of a ramp's interior."""
    shades = np.arange(30, dtype=np.uint8)[:, None, None, None]
    grey = validation.resized(np.broadcast_to(shades, (30, 12, 12, 1)), (4, 4, 3))
    np.testing.assert_array_equal(grey, np.broadcast_to(shades, (30, 4, 4, 3)))
    ramp = np.arange(0, 240, 20, dtype=np.uint8)[None, None, :, None]
    small = validation.resized(np.broadcast_to(ramp, (1, 12, 12, 3)), (4, 4, 3))
    # means of 60, 80, 100 and 120, 140, 160
    np.testing.assert_allclose(small[0, 0, 1:3, 0], [80, 140], atol=1)


def test_external_images_follow_the_pool_for_every_seed():
    x, y = RNG.integers(0, 256, (30, 4, 4, 3), np.uint8), np.repeat([1, 3, 5], 10).astype(np.int32)
    first, second = (validation.from_outside(ARRAYS, x, y, "official", seed) for seed in (0, 1))
    assert first.x.shape == second.x.shape == (630, 4, 4, 3)
    assert first.most == len(first.rows) == len(second.rows) == 60
    # ten of a class, all within the 50
    np.testing.assert_array_equal(np.bincount(first.rows - 600), [2] * 30)
    assert not np.array_equal(first.rows, second.rows)
    np.testing.assert_array_equal(first.y[first.rows], y[first.rows - 600])
    assert first.rows.dtype == np.int32 and first.y.dtype == np.int32


# --- subsets


def test_subset_is_random_ordered_and_part_of_every_larger_one():
    whole = shared_rows(RNG.permutation(600))
    rows = [validation.subset(whole, size, 42).rows for size in (2, 10, 100, 600)]
    for smaller, larger in itertools.pairwise(rows):
        np.testing.assert_array_equal(smaller, larger[np.isin(larger, smaller)])
    assert [*map(len, rows)] == [2, 10, 100, 600] and (rows[-1] == whole.rows).all()
    assert set(validation.subset(whole, 100, 1).rows) != {*rows[2]}


# --- imbalance


@pytest.mark.parametrize(("rho", "total"), [(1.0, 2970), (0.75, 2780), (0.25, 1337)])
def test_imbalanced_set_has_the_published_totals(rho, total):
    """Totals of the published code for 5,957 validation images of ten classes of nearly equal size: N' = 2,978."""
    labels = np.repeat(np.arange(10, dtype=np.int32), [596] * 7 + [595] * 3)
    result = validation.imbalanced(of_labels(labels), rho, 10, 0)
    assert len(result.rows) == total == len(np.unique(result.rows))
    shares = rho ** np.arange(10)
    expected = np.floor(shares / shares.sum() * 2978).astype(int)
    expected = np.minimum(expected, np.bincount(labels))
    np.testing.assert_array_equal(np.bincount(labels[result.rows], minlength=10), expected)


def of_labels(labels):
    """Returns a D_val of rows with these labels."""
    size = len(labels)
    return validation.Shared(labels[:, None], labels, np.arange(size, dtype=np.int32), size, None)


def test_balanced_classes_keep_their_half():
    """1/49 x 49 is below 1 in floating point."""
    whole = of_labels(np.tile(np.arange(49, dtype=np.int32), 4))
    assert len(validation.imbalanced(whole, 1.0, 49, 0).rows) == 98


def test_imbalanced_set_keeps_its_order_or_is_sorted_in_full_batches():
    whole = shared_rows(RNG.permutation(600))
    kept = validation.imbalanced(whole, 0.5, 10, 0).rows
    np.testing.assert_array_equal(kept, whole.rows[np.isin(whole.rows, kept)])
    official = validation.imbalanced(whole, 0.5, 10, 0, batch_size=32).rows
    assert len(official) == len(kept) // 32 * 32 and set(official) <= set(kept)
    assert np.all(np.diff(ARRAYS.y[official]) >= 0)


# --- noise


def test_label_noise_changes_validation_rows_only():
    whole = shared()
    result = validation.noisy(whole, 0.4, 10, 0)
    others = np.setdiff1d(np.arange(600), whole.rows)
    np.testing.assert_array_equal(result.y[others], ARRAYS.y[others])
    np.testing.assert_array_equal(result.rows, whole.rows)
    changed = (result.y != ARRAYS.y)[whole.rows]
    assert changed.sum() == int(0.4 * len(whole.rows)) and {*result.y} <= {*range(10)}
    assert result.x is whole.x
