"""Every kind of partition: common invariants, those of each kind, and statistics."""

import itertools

import numpy as np
import pytest
from support.files import same_partition

from fedvg_jax.data.partitions import client_rows as statistics, kinds, partitioners
from fedvg_jax.data.partitions.client_rows import Partition

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))
EVEN = np.repeat(np.arange(10), 100)
GROUPS = np.random.default_rng(1).integers(0, 40, len(LABELS))


def make(labels=LABELS, kind="dirichlet", **changes):
    settings = {"num_clients": 8, "alpha": 0.5, "groups": GROUPS} | changes
    return partitioners.draw_partition(labels, partitioners.BY_NAME[kind].made(2), **settings)


def rows_by_client(parts):
    """Returns all rows of every client."""
    return [np.concatenate(client_rows) for client_rows in zip(*parts, strict=True)]


# --- invariants of every kind


@pytest.mark.parametrize("kind", partitioners.BY_NAME)
def test_every_kind_is_a_disjoint_cover_that_its_arguments_determine(kind):
    parts = make(kind=kind, num_clients=20)
    every = np.concatenate([client_rows for part in parts for client_rows in part])
    assert every.dtype == np.int32 and np.array_equal(np.sort(every), np.arange(len(LABELS)))
    for n, train, val, test in zip(map(len, rows_by_client(parts)), *parts, strict=True):
        assert n >= 10 and (len(test), len(val)) == (int(0.25 * n), int(0.1 * n)) and len(train) > 0
    assert same_partition(parts, make(kind=kind, num_clients=20))
    assert not same_partition(parts, make(kind=kind, num_clients=20, seed=43))


@pytest.mark.parametrize("holdout", ["global", "stratified", "group"])
def test_rows_that_are_held_out_first_and_the_clients_are_a_disjoint_cover(holdout):
    parts = make(holdout=holdout)
    every = np.concatenate([client_rows for part in parts for client_rows in part])
    assert every.dtype == np.int32 and np.array_equal(np.sort(every), np.arange(len(LABELS)))
    assert min(map(len, parts.train)) >= 10 and [len(part) for part in parts[1:]] == [1, 1]
    missing = [70 - len(parts.val[0]), 175 - len(parts.test[0])]  # a tenth and a quarter of 700
    smallest = np.bincount(GROUPS).min() if holdout == "group" else 1
    assert all(0 <= n < smallest for n in missing)
    if holdout == "stratified":
        counts = np.bincount(LABELS)
        of_test = np.bincount(LABELS[parts.test[0]])
        assert np.all(np.abs(of_test - counts / 4) <= 2 * (1 + 4 * counts / len(LABELS)))


@pytest.mark.parametrize("kind", ["group", "dirichlet"])
def test_no_group_is_in_two_parts_where_whole_groups_are_held_out(kind):
    """By patients at the clients, or with several patients' rows mixed; a patient is trained on or tested, not both."""
    for seed in range(20):
        parts = make(kind=kind, holdout="group", seed=seed)
        of_part = [set(GROUPS[np.concatenate(list(part))]) for part in parts]
        assert len(set.union(*of_part)) == sum(map(len, of_part)) == len(set(GROUPS))
        if kind == "group":
            assert sum(len(set(GROUPS[own])) for own in parts.train) == len(of_part[0])


# --- invariants of each kind


@pytest.mark.parametrize("kind", ["dirichlet_equal", "balanced_client", "iid"])
def test_equal_sizes_differ_by_at_most_one(kind):
    for num_clients, alpha in itertools.product([2, 9, 70], [1e-6, 100.0]):
        parts = make(EVEN, kind=kind, num_clients=num_clients, alpha=alpha, groups=None)
        sizes = [len(rows) for rows in rows_by_client(parts)]
        assert max(sizes) - min(sizes) <= 1, (num_clients, alpha)


def test_skew_of_equal_clients_follows_alpha():
    """At alpha 1e-6 most of ten clients hold nearly one class; at alpha 1e6 all hold the pool's proportions."""

    def largest_share(alpha):
        result = kinds.dirichlet_equal(EVEN, 10, _stream(0), alpha)
        return np.mean([np.bincount(EVEN[rows]).max() / len(rows) for rows in result])

    assert largest_share(1e-6) > 0.5 > largest_share(1.0) > 0.25 > largest_share(1e6)


def test_probability_of_a_class_is_proportional_to_its_size():
    """With 900 and 100 rows and a large alpha, 200 clients of 5 rows each draw the rare class with probability 1/10.

    Two or more rare rows have probability 0.081: 16 clients are expected, with a standard deviation below 4."""
    labels = np.repeat([0, 1], [900, 100])
    clients = kinds.dirichlet_equal(labels, 200, _stream(0), 1e6)
    rare = [labels[client_rows].sum() for client_rows in clients]
    assert abs(np.sum(np.array(rare) >= 2) - 16) < 12


def test_balanced_client_holds_equally_many_rows_of_every_class():
    result = kinds.balanced_client(EVEN, 10, _stream(0), 0.05)
    counts = np.array([np.bincount(EVEN[client_rows], minlength=10) for client_rows in result])
    assert counts[0].tolist() == [10] * 10 and np.all(counts[1:].max(1) > 20)


@pytest.mark.parametrize("rule", ["redraw", "top_up"])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_quantity_skew_keeps_label_proportions(rule, alpha):
    """The sort key of a row of class c is within 1 / n_c of its rank among these rows.

    The prefix of keys below k therefore holds n_c k rows of c, within 1, and T k rows in all, within C. A client is the
    difference of two prefixes."""
    settings = {"val_ratio": 0.0, "test_ratio": 0.0, "min_samples_rule": rule}
    result = make(kind="quantity", alpha=alpha, seed=3, min_samples=2, **settings).train
    shares = np.bincount(LABELS) / len(LABELS)
    for client_rows in result:
        counts = np.bincount(LABELS[client_rows], minlength=4)
        assert np.all(np.abs(counts - len(client_rows) * shares) <= 2 * (1 + 4 * shares))
    sizes = np.array([len(client_rows) for client_rows in result])
    assert sizes.std() / sizes.mean() > (0.7 if alpha < 1 else 0.1)


@pytest.mark.parametrize("per_client", [1, 5])
def test_client_holds_at_most_one_class_per_shard(per_client):
    """1,000 rows form 10 s shards of 100 / s rows: no shard spans two classes of 100 rows."""
    result = kinds.shards(EVEN, 10, _stream(0), per_client)
    assert all(
        len(np.unique(EVEN[client_rows])) <= per_client and len(client_rows) == 100
        for client_rows in result
    )


def test_groups_are_not_divided_and_spread_evenly():
    result = rows_by_client(make(kind="group"))
    members = [set(GROUPS[client_rows]) for client_rows in result]
    assert sum(map(len, members)) == 40 == len(set.union(*members))
    assert {len(client_rows) for client_rows in members} == {5}
    assert members != [
        set(GROUPS[client_rows]) for client_rows in rows_by_client(make(kind="group", seed=43))
    ]
    ids = rows_by_client(make(kind="group", groups=np.arange(len(LABELS)) % 7 * 10, num_clients=7))
    # client i is group i
    assert all(set(client_rows % 7) == {k} for k, client_rows in enumerate(ids))


def _stream(seed):
    return np.random.default_rng(seed)


# --- statistics


def test_statistics_equal_values_computed_by_hand():
    labels = np.array([0, 0, 1, 1, 1, 2, 0, 1])
    parts = Partition([np.array([0, 1, 2, 3]), np.array([4])], [np.array([5, 6])], [np.array([7])])
    assert statistics.describe(labels, ("a", "b", "c"), parts) == {
        "clients": 2,
        "samples": [4, 1],
        "val_samples": [2],
        "test_samples": [1],
        "class_names": ["a", "b", "c"],
        "counts": [[2, 2, 0], [0, 1, 0]],
    }
