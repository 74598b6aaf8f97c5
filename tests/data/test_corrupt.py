"""Corrupt training rows: which rows change, the effect of each kind, and dependence on the seed."""

import numpy as np
import pytest

from fedvg_jax.data import corrupt

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (60, 5, 5, 1), np.uint8), RNG.integers(0, 4, 60).astype(np.int32)
CLIENTS = [np.arange(k, 60, 6) for k in range(5)]  # the last sixth of the rows belongs to no client
IDS = np.array([1, 3])
KINDS = (*corrupt.LABELS, "feature_noise")


def apply(kind, strength=1.0, seed=0, x=X, y=Y, clients=CLIENTS, ids=IDS):
    return corrupt.apply(kind, x, y, clients, ids=ids, strength=strength, num_classes=4, seed=seed)


@pytest.mark.parametrize("kind", KINDS)
def test_corruption_changes_only_rows_of_corrupt_clients_and_copies_them(kind):
    before = X.copy(), Y.copy()
    x, y = apply(kind)
    is_corrupt = np.isin(np.arange(60) % 6, IDS)
    changed = (y != Y) | (x != X).any((1, 2, 3))
    assert changed[is_corrupt].mean() > 0.9 and not changed[~is_corrupt].any()
    assert (x is X) == (kind in corrupt.LABELS) and (y is Y) == (kind not in corrupt.LABELS)
    assert x.dtype == np.uint8 and y.dtype == np.int32 and x.shape == X.shape
    np.testing.assert_equal((X, Y), before)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "label_flip"])  # which is not random
def test_corruption_is_determined_by_seed_and_client(kind):
    def of_client(seed, ids=IDS):
        return [part[CLIENTS[3]].tolist() for part in apply(kind, seed=seed, ids=ids)]

    first = of_client(0)
    assert first == of_client(0) and first not in [of_client(seed) for seed in (1, 2, 3, 4)]
    # whose level depends on the client's position among the corrupt ones
    if kind != "feature_noise":
        assert first == of_client(0, np.array([0, 3, 4]))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_label_flip_mirrors_the_given_share_of_labels(share):
    _, y = apply("label_flip", share)
    for client in IDS:
        after, before = y[CLIENTS[client]], Y[CLIENTS[client]]
        is_flipped = after != before
        # no class of four is its own mirror image
        assert is_flipped.sum() == int(share * len(before))
        np.testing.assert_array_equal(after[is_flipped], 3 - before[is_flipped])


def test_label_noise_is_uniform_over_other_labels():
    y = np.full(3000, 2, np.int32)
    result = np.bincount(corrupt.label_noise(y, 1.0, 4, np.random.default_rng(0)), minlength=4)
    assert result[2] == 0 and result.sum() == 3000
    assert np.all(np.abs(result[[0, 1, 3]] - 1000) < 4.5 * np.sqrt(3000 * (1 / 3) * (2 / 3)))


def test_deviation_of_feature_noise_increases_with_the_client_and_pixels_stay_in_range():
    x = np.full((4000, 2, 2, 1), 128, np.uint8)
    clients, y = np.split(np.arange(4000), 4), np.zeros(4000, np.int32)
    given = {"x": x, "y": y, "clients": clients, "ids": np.arange(4)}
    noisy, _ = apply("feature_noise", 0.2, **given)
    strong, _ = apply("feature_noise", 1.0, **given)
    deviations = [noisy[client_rows].astype(float).std() / 255 for client_rows in clients]
    # the last is clipped at 2.5 deviations
    np.testing.assert_allclose(deviations, [0.05, 0.1, 0.15, 0.2], rtol=0.05)
    assert strong.min() == 0 and strong.max() == 255
