"""Every kind of partition: common invariants, those of each kind, files and arrays of rows, and statistics."""

import itertools
import json

import numpy as np
import pytest
from support.cases import naming
from support.files import same_partition, usage_error

from fedvg_jax.data.partitions import draw, exchange, kinds, statistics
from fedvg_jax.data.partitions.split import Partition

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))
EVEN = np.repeat(np.arange(10), 100)
GROUPS = np.random.default_rng(1).integers(0, 40, len(LABELS))
EQUAL = ("dirichlet_equal", "balanced_client", "iid")


def make(labels=LABELS, **changes):
    return draw.draw_partition(labels, **({"num_clients": 8, "alpha": 0.5, "groups": GROUPS} | changes))


def rows_by_client(parts):
    """Returns all rows of every client."""
    return [np.concatenate(client_rows) for client_rows in zip(*parts, strict=True)]


# --- invariants of every kind


@pytest.mark.parametrize("kind", draw.KINDS)
@pytest.mark.parametrize(
    ("num_clients", "held_out", "rule"),
    [(6, "client", "top_up"), (20, "client", "redraw"), (8, "global", "redraw"), (13, "stratified", "redraw")],
)
def test_every_kind_is_a_disjoint_cover_with_its_minimum_and_the_published_rounding(kind, num_clients, held_out, rule):
    parts = make(kind=kind, num_clients=num_clients, held_out=held_out, rule=rule)
    every = np.concatenate([client_rows for part in parts for client_rows in part])
    assert every.dtype == np.int32 and np.array_equal(np.sort(every), np.arange(len(LABELS)))
    assert len(parts.train) == num_clients
    if held_out == "client":
        for n, train, val, test in zip(map(len, rows_by_client(parts)), *parts, strict=True):
            assert n >= 10 and (len(test), len(val)) == (int(0.25 * n), int(0.1 * n)) and len(train) > 0
    else:
        assert min(map(len, parts.train)) >= 10
        assert [len(part) for part in parts[1:]] == [1, 1]
        assert [len(part[0]) for part in parts[1:]] == [70, 175]  # a tenth and a quarter of 700


@pytest.mark.parametrize("kind", draw.KINDS)
def test_every_kind_is_determined_by_its_arguments(kind):
    first = make(kind=kind)
    assert same_partition(first, make(kind=kind))
    assert not same_partition(first, make(kind=kind, seed=43))


def test_every_argument_is_part_of_the_cache_entry_name(tmp_path):
    changes = [
        *({"kind": kind} for kind in ("shards", "classes", "group", "iid", "dirichlet")),
        *({"seed": 1}, {"alpha": 0.4}, {"labels": np.sort(LABELS)}, {"val_ratio": 0.2}),
        {"kind": "shards", "shards_per_client": 3},
        {"kind": "classes", "classes_per_client": 3},
        {"kind": "group", "groups": GROUPS[::-1]},
        {"kind": "iid", "held_out": "global"},
        {"kind": "iid", "min_samples": 5},
        {"kind": "iid", "num_clients": 7},
        {"kind": "iid", "test_ratio": 0.3},
    ]
    for change in changes:
        make(cache_dir=tmp_path, **change)
    assert len(list(tmp_path.iterdir())) == len(changes)


# --- invariants of each kind


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_sizes_differ_by_at_most_one(kind):
    for case in itertools.product([2, 9, 70], [1e-6, 100.0]):
        num_clients, alpha = case
        sizes = list(map(len, rows_by_client(make(EVEN, kind=kind, num_clients=num_clients, alpha=alpha, groups=None))))
        with naming(case):
            assert max(sizes) - min(sizes) <= 1


def test_skew_of_equal_clients_follows_alpha():
    """At alpha 1e-6 most of ten clients hold nearly one class; at alpha 1e6 all hold the pool's proportions."""

    def effective(alpha):
        result = kinds.dirichlet_equal(EVEN, 10, alpha, np.random.default_rng(0))
        counts = np.array([np.bincount(EVEN[client_rows], minlength=10) for client_rows in result])
        return statistics.skew(counts)["mean_effective_classes"]

    assert effective(1e-6) < 3 < effective(1.0) < 9 < effective(1e6)


def test_probability_of_a_class_is_proportional_to_its_size():
    """With 900 and 100 rows and a large alpha, 200 clients of 5 rows each draw the rare class with probability 1/10.

    Two or more rare rows have probability 0.081: 16 clients are expected, with a standard deviation below 4."""
    labels = np.repeat([0, 1], [900, 100])
    rare = [labels[client_rows].sum() for client_rows in kinds.dirichlet_equal(labels, 200, 1e6, _stream(0))]
    assert abs(np.sum(np.array(rare) >= 2) - 16) < 12


def test_balanced_client_holds_equally_many_rows_of_every_class():
    result = kinds.balanced_client(EVEN, 10, 0.05, _stream(0))
    counts = np.array([np.bincount(EVEN[client_rows], minlength=10) for client_rows in result])
    assert counts[0].tolist() == [10] * 10 and np.all(counts[1:].max(1) > 20)
    with usage_error("balanced client of 350 rows", "of class 3", "80", "more clients"):
        kinds.balanced_client(LABELS, 2, 0.05, _stream(1))


@pytest.mark.parametrize("rule", ["redraw", "top_up"])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_quantity_skew_keeps_label_proportions(rule, alpha):
    """The sort key of a row of class c is within 1 / n_c of its rank among these rows.

    The prefix of keys below k therefore holds n_c k rows of c, within 1, and T k rows in all, within C. A client is the
    difference of two prefixes."""
    result = kinds.quantity(LABELS, 8, alpha, _stream(3), 2, rule)
    shares = np.bincount(LABELS) / len(LABELS)
    for client_rows in result:
        counts = np.bincount(LABELS[client_rows], minlength=4)
        assert np.all(np.abs(counts - len(client_rows) * shares) <= 2 * (1 + 4 * shares))
    assert statistics.gini(np.array([len(client_rows) for client_rows in result])) > (0.4 if alpha < 1 else 0.05)


def test_stratified_split_holds_every_class_in_proportion():
    parts = make(held_out="stratified")
    for part, share in ((parts.val, 0.1), (parts.test, 0.25)):
        counts = np.bincount(LABELS[part[0]], minlength=4)
        expected = np.bincount(LABELS) * share
        assert np.all(np.abs(counts - expected) <= 2 * (1 + 4 * np.bincount(LABELS) / len(LABELS)))


@pytest.mark.parametrize("per_client", [1, 5])
def test_client_holds_at_most_one_class_per_shard(per_client):
    """1,000 rows form 10 s shards of 100 / s rows: no shard spans two classes of 100 rows."""
    result = kinds.shards(EVEN, 10, per_client, _stream(0))
    assert all(len(np.unique(EVEN[client_rows])) <= per_client and len(client_rows) == 100 for client_rows in result)


@pytest.mark.parametrize("per_client", [1, 3])
def test_every_client_holds_its_number_of_classes_shared_equally(per_client):
    result = kinds.classes(LABELS, 8, per_client, _stream(0))
    counts = np.array([np.bincount(LABELS[client_rows], minlength=4) for client_rows in result])
    assert np.all((counts > 0).sum(1) == per_client)
    assert np.ptp((counts > 0).sum(0)) <= 1  # holders of each class
    for of_class in counts.T:
        assert np.ptp(of_class[of_class > 0]) <= 1


def test_groups_are_not_divided_and_spread_evenly():
    result = rows_by_client(make(kind="group"))
    members = [set(GROUPS[client_rows]) for client_rows in result]
    assert sum(map(len, members)) == 40 == len(set.union(*members))
    assert {len(client_rows) for client_rows in members} == {5}
    assert members != [set(GROUPS[client_rows]) for client_rows in rows_by_client(make(kind="group", seed=43))]
    ids = rows_by_client(make(kind="group", groups=np.arange(len(LABELS)) % 7 * 10, num_clients=7))
    assert all(set(client_rows % 7) == {k} for k, client_rows in enumerate(ids))  # client i is group i


def test_groups_may_be_any_integers_or_strings_one_per_row():
    parts = make(kind="group", held_out="global")
    for groups in (GROUPS.tolist(), [f"{group:02}" for group in GROUPS], GROUPS * 3 - 5):
        assert same_partition(parts, make(kind="group", held_out="global", groups=groups))
    for wrong in (GROUPS[:-1], GROUPS[:, None], GROUPS / 2):
        with usage_error("groups must be integers or strings [700], one per row; got"):
            make(kind="group", groups=wrong)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"alpha": 0}, ["alpha must be > 0", "0"]),
        ({"num_clients": 71}, ["71 clients", "10 samples need 710", "700", "fewer clients"]),
        ({"seed": -1}, ["seed must be 0..4294967295", "-1"]),
        ({"kind": "dirichle"}, ["one of dirichlet, official", "group", "'dirichle'"]),
        ({"val_ratio": 1.0}, ["validation ratio must be", "1.0"]),
        ({"test_ratio": 0.5, "val_ratio": 0.5}, ["0.5 + validation ratio 0.5", "below 1"]),
        ({"val_ratio": 0.001}, ["0.001", "8 clients", "validation"]),
        ({"kind": "official", "alpha": 1e-9}, ["1e-09", "too small"]),
        ({"kind": "group", "groups": None}, ["needs an array groups [T]", "--columns group=NAME"]),
        ({"kind": "group", "num_clients": 41}, ["40 groups for 41 clients", "--clients 40"]),
        ({"kind": "group", "num_clients": 40, "min_samples": 17}, ["client", "has", "fewer than --min-samples 17"]),
        ({"kind": "classes", "classes_per_client": 5}, ["1..4", "got 5"]),
        ({"kind": "classes", "num_clients": 3, "classes_per_client": 1}, ["2..4", "all 4", "got 1"]),
        ({"kind": "shards", "shards_per_client": 0}, ["shards_per_client must be >= 1, got 0"]),
        ({"kind": "shards", "shards_per_client": 88}, ["at most 87 for 8 clients to share 700 rows, got 88"]),
        ({"held_out": "outside"}, ["client, global or stratified", "'outside'"]),
        ({"held_out": "global", "num_clients": 46}, ["46 clients", "need 460", "the dataset has 455"]),
    ],
)
def test_impossible_partition_is_refused_in_one_line(changes, parts):
    with usage_error(*parts):
        make(**changes)


def _stream(seed):
    return np.random.default_rng(seed)


# --- given partitions


GIVEN = [[0, 3, 5, 6, 7, 8], [1, 2, 9, 10]]


def check(given, **changes):
    settings = {"num_samples": 12, "num_clients": 2, "source": "here", "test_ratio": 0.34, "val_ratio": 0.25}
    return exchange.check(given, **settings | changes)


def test_rows_by_client_are_read_and_split(tmp_path):
    file, parts = tmp_path / "list.json", check([np.array(client_rows) for client_rows in GIVEN])
    assert [list(map(len, part)) for part in (parts.test, parts.val)] == [[2, 1], [1, 1]]
    assert [sorted(client_rows.tolist()) for client_rows in rows_by_client(parts)] == GIVEN
    file.write_text(json.dumps(GIVEN))
    assert same_partition(check(exchange.read(file)), parts)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ([[0, 1]], ["here", "train holds 1 clients", "clients is 2"]),
        (([[0], [1]], [[2], [3], [4]], [[5]]), ["val holds 3 clients"]),
        ([[0, 1], [1, 2]], ["row 1 occurs 2 times"]),
        (([[0, 1], [3]], [[], []], [[1], []]), ["row 1 occurs 2 times"]),
        ([[0, 1], [2, 12]], ["0..11", "0..12"]),
        ([[0.5, 1], [2, 3]], ["integers [n]", "float64 [2]"]),
    ],
)
def test_malformed_partition_is_refused_in_one_line(given, parts):
    with usage_error(*parts):
        check(given)


def test_given_parts_are_taken_as_they_are_and_rows_of_clients_need_the_minimum():
    given = ([[0, 1], [2]], [[3], []], [[4], [5]])
    parts = check(given, test_ratio=0.6, val_ratio=0.3, min_samples=100, seed=7)
    assert [[rows.tolist() for rows in part] for part in parts] == [list(part) for part in given]
    with usage_error("here", "client 1 has 4", "fewer than --min-samples 5"):
        check(GIVEN, min_samples=5)


# --- statistics


def test_statistics_equal_values_computed_by_hand():
    labels = np.array([0, 0, 1, 1, 1, 2, 0, 1])
    parts = Partition([np.array([0, 1, 2, 3]), np.array([4])], [np.array([5, 6])], [np.array([7])])
    description = statistics.describe(labels, ("a", "b", "c"), parts)
    assert description["samples"] == [4, 1] and description["val_samples"] == [2] and description["test_samples"] == [1]
    assert description["counts"] == [[2, 2, 0], [0, 1, 0]] and description["classes"] == [2, 1]
    assert description["mean_classes"] == 1.5
    assert description["mean_label_entropy"] == round(np.log(2) / 2, 6)  # log 2 and 0
    assert description["mean_effective_classes"] == 1.5  # 2 and 1
    # the union is 2/5, 3/5: distances (1/10 + 1/10) / 2 and (4/10 + 4/10) / 2
    assert description["mean_label_distance"] == 0.25
    assert description["size_gini"] == 0.3  # |4 - 1| twice, over 2 N sum = 20
    assert json.loads(json.dumps(description)) == description
