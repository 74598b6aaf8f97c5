"""Messages about rounds in which clients diverged or no client was averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.core.types import Data

Record = dict[str, Any]

ABSENCES = {"diverged": "diverged", "dropped": "dropped out", "untrained": "took no step"}
"""entry of a record -> what its clients did"""


def error(records: Sequence[Record], data: Data) -> str:
    """The error for the first round in which a client diverged, "" without one."""
    record = next((r for r in records if "diverged" in r), None)
    if record is None:
        return ""
    number, clients = record["round"], record["diverged"]
    if blamed := validation_problem(record, data):
        return f"round {number}: clients {clients} cannot be scored, because {blamed}"
    return (
        f"round {number}: clients {clients} diverged (model, loss or score not finite);"
        " use a smaller --lr, or --nonfinite skip to leave them out"
    )


def warning(records: Sequence[Record], data: Data) -> str:
    """The warning for the first round that averaged no client, "" without one."""
    record = next((r for r in records if averaged_nobody(r)), None)
    if record is None:
        return ""
    counts = [f"{len(record[name])} {what}" for name, what in ABSENCES.items() if name in record]
    blamed = validation_problem(record, data)
    return (
        f"round {record['round']} averaged no client ({', '.join(counts)} of {len(record['clients'])}), so the global"
        f" model stays as it was{f'; clients cannot be scored, because {blamed}' if blamed else ''}"
    )


def averaged_nobody(record: Record) -> bool:
    """Whether all weights are 0, as far as the record still has them."""
    return bool(record["weights"]) and not any(record["weights"])


def validation_problem(record: Record, data: Data) -> str:
    """What is wrong with D_val where no client of the round has a finite score, "" where nothing is."""
    if any(score is not None for score in record["scores"]):
        return ""
    rows = nonfinite_rows(data.pool, np.asarray(data.val))
    if not len(rows):
        return ""
    named = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return (
        f"the shared validation set holds NaN or infinity in {len(rows)} of its rows (of the data: {named}); correct or"
        " remove them"
    )


def nonfinite_rows(pool: Any, table: np.ndarray) -> np.ndarray:
    """Rows of a table [.., B] (-1 for none) that hold a number which is not finite, ascending."""
    import jax

    rows = np.unique(table[table >= 0])
    bad = np.zeros(len(rows), bool)
    for leaf in map(np.asarray, jax.tree.leaves(pool)):
        if leaf.dtype.kind == "f":
            bad |= ~np.isfinite(leaf[rows]).reshape(len(rows), -1).all(1)
    return rows[bad]
