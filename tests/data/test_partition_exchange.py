"""Partition files in the formats of other frameworks."""

import json

import numpy as np
import pytest
from support.files import usage_error

from fedvg_jax import data
from fedvg_jax.data.partitions import exchange
from fedvg_jax.data.partitions.split import Partition

LABELS = np.arange(60) % 4


def drawn(**settings):
    return data.draw_partition(LABELS, **{"num_clients": 3, "alpha": 1.0, "min_samples": 8, **settings})


def read(file, num_clients=3):
    settings = {"num_samples": len(LABELS), "num_clients": num_clients, "source": file}
    return exchange.check(exchange.read(file, len(LABELS)), **settings)


def as_lists(partition: Partition):
    return [[rows.tolist() for rows in part] for part in partition]


@pytest.mark.parametrize(("suffix", "held_out"), [(".json", "client"), (".npz", "global")])
def test_written_parts_are_read_as_the_same_partition(tmp_path, suffix, held_out):
    file, partition = tmp_path / f"rows{suffix}", drawn(held_out=held_out)
    exchange.write(file, partition)
    actual = read(file)
    assert as_lists(actual) == as_lists(partition)
    assert {rows.dtype for part in actual for rows in part} == {np.dtype(np.int32)}


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_parts_of_a_pool_are_refused_for_one_of_another_size(tmp_path, suffix):
    file, partition = tmp_path / f"rows{suffix}", drawn()
    exchange.write(file, partition, num_samples=len(LABELS))
    assert as_lists(read(file)) == as_lists(partition)
    with usage_error(str(file), f"it divides {len(LABELS)} rows, and the data set has {len(LABELS) + 1}; use"):
        exchange.read(file, len(LABELS) + 1)


def test_rows_by_client_number_are_read_in_the_order_of_the_numbers(tmp_path):
    by_client = {str(k): [k] for k in reversed(range(11))}
    (tmp_path / "flwr.json").write_text(json.dumps(by_client))
    np.savez(tmp_path / "fedlab.npz", **{name: np.array(rows) for name, rows in by_client.items()})
    for name in ("flwr.json", "fedlab.npz"):
        assert [rows.tolist() for rows in exchange.read(tmp_path / name)] == [[k] for k in range(11)]


def test_parts_with_rows_by_client_number_are_read(tmp_path):
    parts = {name: {str(k): [3 * k + i] for k in range(3)} for i, name in enumerate(Partition._fields)}
    (tmp_path / "a.json").write_text(json.dumps(parts))
    assert as_lists(read(tmp_path / "a.json")) == [[[3 * k + i] for k in range(3)] for i in range(3)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"0": [1], "2": [3]}', ["client 1 of 2 is missing", "must hold"]),
        ('{"0": [1], "1": 2}', ["must be a list", "must hold"]),
        ('{"0": [1], "train": [[2]]}', ["no val", "must hold"]),
        ('{"0": [1], "1": [2]', ["not complete JSON", "must hold"]),
        ("[" * 100_000, ["nested too deeply"]),
        ("\udcff", ["not complete JSON"]),
        ('{"train": [[0]], "val": [[99999999999999999999]], "test": [[]]}', ["must be integers"]),
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, text, parts):
    (tmp_path / "a.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with usage_error(str(tmp_path / "a.json"), *parts):
        read(tmp_path / "a.json", num_clients=1)


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut short", None])
def test_unreadable_file_is_named_with_the_layout(tmp_path, content):
    if content is not None:
        (tmp_path / "a.npz").write_bytes(content)
    with usage_error("a.npz", "must hold", "`train_sizes`"):
        exchange.read(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **{"0": np.array([[1], [2, 3]], object)})
    with usage_error("a.npz", "Object arrays cannot be loaded"):
        exchange.read(tmp_path / "a.npz")
