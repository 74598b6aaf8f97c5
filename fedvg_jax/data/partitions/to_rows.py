"""Writes a partition to a file that `from_rows` and other frameworks read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import draw
from fedvg_jax.data.partitions.from_rows import NUM_ROWS
from fedvg_jax.data.partitions.split import Partition


def write(file: Path, partition: Partition, form: str = "parts", num_samples: int | None = None) -> None:
    """Writes the rows of every client, atomically.

    Args:
        file: ends in .npz or .json; an existing file is replaced.
        partition: the rows.
        form: "parts": training, validation and test rows of every client, of which `from_rows.read` and
            `from_rows.check` return the same partition; "clients": all rows of client k, sorted, by the number k.
        num_samples: T, rows of the pool. The form "parts" records it, so that the file is refused for another pool.

    Raises:
        UsageError: the file cannot be written, or `form` is "clients" and held-out rows belong to no client.
    """
    if form == "clients":
        of_client = {str(k): rows for k, rows in enumerate(_all_rows(partition))}
        text = _npz(of_client) if file.suffix == ".npz" else _json({k: rows.tolist() for k, rows in of_client.items()})
    elif file.suffix == ".npz":
        text = _npz(draw.as_members(partition) | ({} if num_samples is None else {NUM_ROWS: np.array(num_samples)}))
    else:
        parts = {name: [rows.tolist() for rows in part] for name, part in partition._asdict().items()}
        text = _json(parts | ({} if num_samples is None else {NUM_ROWS: num_samples}))
    with files.writing(file, "--export-partition"):
        files.replace_bytes(files.export_target(file, "export_partition"), [text])


def _all_rows(partition: Partition) -> list[np.ndarray]:
    """Returns the rows of every client, sorted.

    >>> [rows.tolist() for rows in _all_rows(Partition([np.array([3])], [np.array([0])], [np.array([4])]))]
    [[0, 3, 4]]
    """
    if not len(partition.train) == len(partition.val) == len(partition.test):
        raise UsageError(
            "the form clients needs rows that belong to clients, and these were held out of all; use parts"
        )
    return [np.sort(np.concatenate(rows)) for rows in zip(*partition, strict=True)]


def _json(value: Mapping[str, Any]) -> bytes:
    """Returns JSON with one line per client."""

    def lines(rows: int | Sequence[int] | Sequence[Sequence[int]]) -> str:
        if isinstance(rows, Sequence) and rows and not isinstance(rows[0], int):
            return "[\n" + ",\n".join(json.dumps(client_rows) for client_rows in rows) + "\n]"
        return json.dumps(rows)

    members = ",\n".join(f"{json.dumps(name)}: {lines(rows)}" for name, rows in value.items())
    return f"{{\n{members}\n}}\n".encode()


def _npz(members: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **members)  # pyright: ignore[reportArgumentType]  NumPy's stub mistakes them for allow_pickle
    return buffer.getvalue()
