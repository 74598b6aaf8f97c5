"""Writes a partition to a file that `from_rows` reads."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core import files
from fedvg_jax.data.partitions import draw
from fedvg_jax.data.partitions.from_rows import NUM_ROWS
from fedvg_jax.data.partitions.split import Partition


def write(file: Path, partition: Partition, num_samples: int | None = None) -> None:
    """Writes the training, validation and test rows of every client, atomically.

    Args:
        file: ends in .npz or .json; an existing file is replaced.
        partition: the rows.
        num_samples: T, rows of the pool, so that the file is refused for another pool.

    Raises:
        UsageError: the file cannot be written.
    """
    if file.suffix == ".npz":
        text = _npz(draw.as_members(partition) | ({} if num_samples is None else {NUM_ROWS: np.array(num_samples)}))
    else:
        parts = {name: [rows.tolist() for rows in part] for name, part in partition._asdict().items()}
        text = _json(parts | ({} if num_samples is None else {NUM_ROWS: num_samples}))
    with files.writing(file, "--export-partition"):
        files.replace_bytes(files.export_target(file, "export_partition"), [text])


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
