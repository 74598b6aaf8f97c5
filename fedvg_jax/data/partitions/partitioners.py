"""Partitioners, which divide the rows of a data set over clients, and the partitions that they draw.

The published protocol: a Dirichlet partition of all rows, then a 65 / 10 / 25 split of each client's rows. The shared
validation set D_val and the pooled test set are the clients' parts in the order of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from fedvg_jax.core.types import Argument, Choice, Range, UsageError
from fedvg_jax.data.arrays import reading
from fedvg_jax.data.partitions import client_rows, kinds, label_skew
from fedvg_jax.data.partitions.client_rows import ClientRows, Partition, Stream

__all__ = [
    "BY_NAME",
    "Partitioner",
    "balanced_client",
    "dirichlet",
    "dirichlet_equal",
    "group",
    "iid",
    "official",
    "quantity",
    "shards",
]

_DOMAIN = int.from_bytes(b"partition")
"""Separates this stream from others that are seeded with the same number."""

_DRAWN_SIZES = ("alpha", "min_samples", "min_samples_rule")


def default_stream(seed: int) -> np.random.Generator:
    """Returns the stream of a partition, from its first draw to the split of its last client."""
    return np.random.default_rng([seed, _DOMAIN])


class Partitioner(NamedTuple):
    """A division of rows over clients. A custom one is `Partitioner(divide)`.

    >>> halves = Partitioner(lambda labels, num_clients, stream: np.array_split(np.argsort(labels), num_clients))
    >>> [rows.tolist() for rows in halves.divide(np.array([1, 0, 1, 0]), 2, default_stream(0))]
    [[1, 3], [0, 2]]
    """

    divide: Callable[..., Sequence[np.ndarray]]
    """(labels or groups [T], number of clients N, random stream, **settings of `uses`) -> rows of every client, int [n]
    each; consumes the stream"""
    text: str = ""
    """as the setting `partition` names it; empty for a custom one"""
    reads: Literal["labels", "groups", "nothing"] = "labels"
    """what it divides by"""
    uses: Collection[str] = ()
    """settings that it takes as arguments"""
    stream: Callable[[int], Stream] = default_stream
    """seed -> random stream"""


def dirichlet() -> Partitioner:
    """Labels by Dirichlet(alpha), with clients of `min_samples` rows or more; see `label_skew.bulk`."""
    return Partitioner(partial(_draw, label_skew.bulk), "dirichlet", uses=_DRAWN_SIZES)


def official() -> Partitioner:
    """The same distribution by the published random stream, draw for draw; see `label_skew.official`."""
    divide = partial(_draw, label_skew.official)
    return Partitioner(divide, "official", uses=_DRAWN_SIZES, stream=np.random.RandomState)


def dirichlet_equal() -> Partitioner:
    """Labels by Dirichlet(alpha), with clients of equal size; see `kinds.dirichlet_equal`."""
    return Partitioner(kinds.dirichlet_equal, "dirichlet_equal", uses=("alpha",))


def balanced_client() -> Partitioner:
    """Like `dirichlet_equal`, with one balanced client; see `kinds.balanced_client`."""
    return Partitioner(kinds.balanced_client, "balanced_client", uses=("alpha",))


def quantity() -> Partitioner:
    """Sizes n ~ T Dirichlet(alpha 1_N), with the pool's labels in proportion.

    With q_c the pool's share of class c of C, a client of n rows holds n q_c rows of c, within 2 (1 + C q_c).

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
    """

    def divide(labels: np.ndarray, num_clients: int, stream: Any, **settings: Any) -> Sequence:
        unlabelled = np.zeros_like(labels)
        of_one_class = _draw(label_skew.bulk, unlabelled, num_clients, stream, **settings)
        order = kinds.proportional_order(labels, stream)
        return client_rows.from_sizes(order, client_rows.sizes(of_one_class))

    return Partitioner(divide, "quantity", "nothing", _DRAWN_SIZES)


def iid() -> Partitioner:
    """Random rows, with sizes that differ by at most 1.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """

    def divide(labels: np.ndarray, num_clients: int, stream: Any) -> Sequence[np.ndarray]:
        return np.array_split(stream.permutation(len(labels)), num_clients)

    return Partitioner(divide, "iid", "nothing")


def shards(per_client: int = 2) -> Partitioner:
    """Pieces of the rows sorted by label, s = `per_client` for each client; see `kinds.shards`."""
    Range(1).require("shards: per_client", per_client)
    return Partitioner(partial(kinds.shards, per_client=per_client), f"shards:{per_client}")


def group() -> Partitioner:
    """Whole groups, such as writers or hospitals; see `kinds.by_group`."""
    return Partitioner(kinds.by_group, "group", "groups")


def _draw(
    draw: Callable[..., list[np.ndarray]],
    labels: np.ndarray,
    num_clients: int,
    stream: Any,
    *,
    alpha: float,
    min_samples: int,
    min_samples_rule: str,
) -> Sequence[np.ndarray]:
    """Returns a division of labels whose clients have `min_samples` rows or more.

    "redraw" repeats the draw until the minimum is met, as published; "top_up" draws once and moves rows to clients that
    are too small.
    """
    if min_samples_rule == "redraw":
        return draw(labels, num_clients, stream, alpha, min_samples)
    rows = draw(labels, num_clients, stream, alpha, 0)
    return label_skew.top_up(rows, min_samples, stream)


BY_NAME = {
    "dirichlet": Choice(dirichlet),
    "official": Choice(official),
    "dirichlet_equal": Choice(dirichlet_equal),
    "balanced_client": Choice(balanced_client),
    "quantity": Choice(quantity),
    "iid": Choice(iid),
    "shards": Choice(shards, Argument(2, Range(1))),
    "group": Choice(group),
}
"""The partitioners that the setting `partition` names."""


# --- drawing


class Settings(NamedTuple):
    """What a drawn partition depends on besides its partitioner, labels and groups, as in the settings of a run."""

    num_clients: int = 20
    """N"""
    alpha: float = 0.05
    """Dirichlet concentration; small values give skewed clients."""
    seed: int = 42
    min_samples: int = 10
    """Rows that every client has before its split."""
    min_samples_rule: str = "redraw"
    """"redraw" or "top_up", for partitioners that draw sizes; others raise a UsageError for a client that is too
    small."""
    test_ratio: float = 0.25
    """Part of each client's rows (of all rows, by `holdout`) for test, rounded down."""
    val_ratio: float = 0.1
    """The same for validation; the remaining rows are for training."""
    holdout: str = "client"
    """"client" splits each client's rows, as published. Three hold rows of the whole set out before it is divided:
    "global", random ones, as in the paper's text; "stratified", with every class in proportion; "group", whole
    groups."""


def draw_partition(
    labels: np.ndarray,
    partitioner: Partitioner | None = None,
    *,
    groups: np.ndarray | None = None,
    **settings: Any,
) -> Partition:
    """Returns the partition that these arguments describe; equal arguments give equal rows.

    Args:
        labels: int [T], 0..C-1.
        partitioner: divides the rows; `dirichlet` by default.
        groups: [T] integers or strings, for the partitioner `group` and for whole groups that are held out.
        settings: fields of `Settings`.

    Raises:
        UsageError: no draw meets the minimum, a custom partitioner breaks its contract, or there are no groups.

    >>> parts = draw_partition(np.arange(40) % 2, iid(), num_clients=2)
    >>> [len(rows) for part in parts for rows in part]
    [13, 13, 2, 2, 5, 5]
    """
    s, labels = Settings(**settings), np.asarray(labels, np.int32)
    partitioner = partitioner or dirichlet()
    by_groups = partitioner.reads == "groups"
    if groups is None and (by_groups or s.holdout == "group"):
        raise UsageError(
            "partition group and holdout group need an array groups [T] in the .npz, --group of csv or hf:FOLDER,"
            " --group-pattern of folder, or from Python data=fedvg_jax.Arrays(..., groups=...)"
        )
    stream: Any = partitioner.stream(s.seed)
    divided_by = np.asarray(groups if by_groups else labels)
    if s.holdout == "client":
        rows = _divide(partitioner, s, divided_by, stream)
        return client_rows.split_clients(rows, s.test_ratio, s.val_ratio, stream)
    num_test, num_val = int(s.test_ratio * len(labels)), int(s.val_ratio * len(labels))
    if s.holdout == "group":
        test, val, others = client_rows.hold_out_groups(
            np.asarray(groups), num_test, num_val, stream
        )
    else:
        if s.holdout == "stratified":
            order = kinds.proportional_order(labels, stream)
        else:
            order = stream.permutation(len(labels))
        test, val, others = np.split(order.astype(np.int32), [num_test, num_test + num_val])
    remaining = np.sort(others)
    rows = _divide(partitioner, s, divided_by[remaining], stream)
    train = [remaining[stream.permutation(client)] for client in rows]
    return Partition(*map(client_rows.pack, (train, [val], [test])))


def _divide(
    partitioner: Partitioner, s: Settings, divided_by: np.ndarray, stream: Any
) -> ClientRows:
    """Returns the rows of every client, each with the minimum or more."""
    needed = s.num_clients * s.min_samples
    if needed > len(divided_by):
        raise UsageError(
            f"{s.num_clients} clients of at least {s.min_samples} samples need {needed}, the dataset has"
            f" {len(divided_by)}: use fewer clients or a smaller --min-samples"
        )
    arguments = {name: getattr(s, name) for name in partitioner.uses}
    source = f"partition {partitioner.text or 'of a custom partitioner'}"
    with reading(source, "rows of clients", "return the rows of each client, integers [n]"):
        rows = partitioner.divide(divided_by, s.num_clients, stream, **arguments)
        if not partitioner.text:
            (rows,) = client_rows.checked([rows], len(divided_by), s.num_clients, source)
    packed = client_rows.pack(rows)
    client_rows.refuse_small(packed, s.min_samples, source)
    return packed
