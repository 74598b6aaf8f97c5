"""Mistakes in data sets, partitions and validation sets."""

import json
import tempfile
from pathlib import Path

import numpy as np

from fedvg_jax.data.partitions import dirichlet, draw, exchange, kinds, split

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))
GROUPS = np.random.default_rng(1).integers(0, 40, 700)
PARTS = {"train": [0], "train_sizes": [1], "val": [1], "val_sizes": [1], "test": [2], "test_sizes": [1]}


def partition(**changes):
    """Returns the call that draws a partition of 700 rows in four classes."""
    return lambda: draw.draw_partition(
        LABELS, **{"num_clients": 8, "alpha": 0.5, "groups": GROUPS, "min_samples": 10} | changes
    )


def given(rows, **changes):
    """Returns the call that checks rows of two clients, of twelve."""
    return lambda: exchange.check(rows, **{"num_samples": 12, "num_clients": 2, "source": "here"} | changes)


def partition_file(name, content):
    """Returns the call that reads and checks a file with this value (.json) or these arrays (.npz)."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, name)
            if isinstance(content, str):
                file.write_text(content)
            elif file.suffix == ".json":
                file.write_text(json.dumps(content))
            elif content is not None:
                np.savez(file, **content)
            exchange.check(exchange.read(file, 12), num_samples=12, num_clients=1, source=file)

    return call


_RANDOM = np.random.default_rng(0)

PARTITIONS = [
    ("more clients than rows", partition(num_clients=71), "--min-samples"),
    ("fewer rows after holding out", partition(held_out="global", num_clients=46), "--min-samples"),
    ("an empty validation set", partition(val_ratio=0.001), "validation ratio"),
    ("alpha beyond the published draw", partition(kind="official", alpha=1e-9), "alpha"),
    ("no draw with the minimum", lambda: dirichlet.bulk(LABELS, 60, 0.05, _RANDOM, 10, 50), "--min-samples-rule"),
    ("no published draw with the minimum",
     lambda: dirichlet.official(LABELS, 60, 0.05, split.random_stream("official", 0), 10, 50), "--min-samples-rule"),
    ("no groups to divide by", partition(kind="group", groups=None), "partition group"),
    ("no groups to hold out", partition(held_out="group", groups=None), "holdout group"),
    ("groups of other rows", partition(kind="group", groups=GROUPS[:-1]), "groups"),
    ("groups that are floats", partition(kind="group", groups=GROUPS / 2), "groups"),
    ("fewer groups than clients", partition(kind="group", num_clients=41), "--clients 40"),
    ("groups below the minimum", partition(kind="group", num_clients=40, min_samples=17), "--min-samples"),
    ("groups too large to hold out", partition(held_out="group", groups=GROUPS % 2), "group"),
    ("more classes than there are", partition(kind="classes", classes_per_client=5), "classes_per_client"),
    ("a class without a client", partition(kind="classes", num_clients=3, classes_per_client=1), "classes_per_client"),
    ("more shards than rows", partition(kind="shards", shards_per_client=88), "shards_per_client"),
    ("a balanced client that is too large", lambda: kinds.balanced_client(LABELS, 2, 0.05, _RANDOM), "class 3"),
    ("one client given of two", given([[0, 1]]), "clients"),
    ("three clients validate of two", given(([[0], [1]], [[2], [3], [4]], [[5]])), "val"),
    ("a row of two clients", given([[0, 1], [1, 2]]), "row 1"),
    ("a row of two parts", given(([[0, 1], [3]], [[], []], [[1], []])), "row 1"),
    ("a row beyond the pool", given([[0, 1], [2, 12]]), "0..11"),
    ("a row below the pool", given([[0, 1], [-(2**63), 2]]), "0..11"),
    ("a row beyond 64 bits", given([[0, 1], np.array([2**64 - 1], np.uint64)]), "0..11"),
    ("rows that are floats", given([[0.5, 1], [2, 3]]), "rows"),
    ("rows in a dict", given({0: [0], 1: [1]}), "train, val, test"),
    ("fewer rows than the minimum", given([[0, 1, 2], [3]], min_samples=2), "--min-samples"),
    ("no file", partition_file("rows.npz", None), "rows.npz"),
    ("a file of another kind", partition_file("rows.npz", "text"), "rows.npz"),
    ("a file without a part", partition_file("rows.npz", {"train": [0], "train_sizes": [1]}), "rows.npz"),
    ("sizes below 0", partition_file("rows.npz", PARTS | {"test": [2, 3], "test_sizes": [-1, 3]}), "test_sizes"),
    ("sizes beyond 64 bits", partition_file("rows.npz", PARTS | {"test_sizes": [2**62] * 4 + [1]}), "test_sizes"),
    ("sizes that are floats", partition_file("rows.npz", PARTS | {"test_sizes": [0.5]}), "rows.npz"),
    ("sizes in a table", partition_file("rows.npz", PARTS | {"test_sizes": [[1]]}), "test_sizes"),
    ("a file of another pool", partition_file("rows.npz", PARTS | {"num_rows": 11}), "max_rows"),
    ("damaged JSON", partition_file("rows.json", '[[1], [2]'), "rows.json"),
    ("JSON of numbers", partition_file("rows.json", [1, 2]), "rows.json"),
    ("JSON of parts", partition_file("rows.json", {"train": [[0]]}), "rows.json"),
    ("JSON with a row beyond 64 bits", partition_file("rows.json", [[2**70]]), "rows.json"),
]  # fmt: skip

CASES = [*PARTITIONS]
