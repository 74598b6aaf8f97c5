"""Messages about rounds in which clients diverged or no client was averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.core.types import Data, Variables

Record = dict[str, Any]

ABSENCES = {"diverged": "diverged", "dropped": "dropped out", "untrained": "took no step"}
"""entry of a record -> words for its clients"""


def until_first(records: Sequence[Record]) -> list[Record]:
    """Returns the records up to the first round in which a client diverged, and that one.

    >>> until_first([{"round": 1}, {"round": 2, "diverged": [0]}, {"round": 3}])
    [{'round': 1}, {'round': 2, 'diverged': [0]}]
    """
    first = next((i for i, record in enumerate(records) if "diverged" in record), len(records))
    return list(records[: first + 1])


def error(records: Sequence[Record], data: Data, variables: Variables | None = None) -> str:
    """Returns the error message for the first round in which a client diverged, "" if none did.

    Args:
        records: of the last rounds.
        data: the pool and the tables of rows.
        variables: the global model after these rounds. Before the first of them in which a client diverged it was the
            same if that round and all later ones averaged no client.
    """
    earlier = len(until_first(records)) - 1
    record = records[earlier] if records else {}
    if "diverged" not in record:
        return ""
    number, clients = record["round"], record["diverged"]
    is_unchanged = all(map(averaged_no_client, records[earlier:]))
    if variables is not None and is_unchanged and not is_finite(variables):
        culprit = f"the server's step of round {number - 1} was" if number > 1 else "the initial model is"
        advice = (
            "use a smaller server learning rate, or correct the algorithm's residual" if number > 1 else "correct it"
        )
        return f"round {number}: clients {clients} cannot train, because {culprit} not finite; {advice}"
    if problem := validation_problem(record, data):
        return f"round {number}: clients {clients} cannot be scored, because {problem}"
    return (
        f"round {number}: clients {clients} diverged (model, loss or score not finite);"
        " use a smaller --lr, or --nonfinite skip to leave them out"
    )


def warning(records: Sequence[Record], data: Data) -> str:
    """Returns the warning for the first round that averaged no client, "" if there is none."""
    record = next((r for r in records if averaged_no_client(r)), None)
    if record is None:
        return ""
    counts = [f"{len(record[name])} {what}" for name, what in ABSENCES.items() if name in record]
    problem = validation_problem(record, data)
    return (
        f"round {record['round']} averaged no client ({', '.join(counts)} of {len(record['clients'])}), so the global"
        f" model stays as it was{f'; clients cannot be scored, because {problem}' if problem else ''}"
    )


def is_finite(tree: Any) -> bool:
    """Returns whether all arrays of a pytree are finite."""
    import jax

    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def averaged_no_client(record: Record) -> bool:
    """Returns whether the record has weights and all are 0."""
    return bool(record["weights"]) and not any(record["weights"])


def validation_problem(record: Record, data: Data) -> str:
    """Returns the reason in D_val why no client of the round has a finite score, "" if there is none."""
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
    """Returns the rows of the pool with a non-finite number, ascending.

    Args:
        pool: pytree of arrays [T, ...].
        table: int [.., B] rows to check, -1 for padding.
    """
    import jax

    rows = np.unique(table[table >= 0])
    bad = np.zeros(len(rows), bool)
    for leaf in map(np.asarray, jax.tree.leaves(pool)):
        if leaf.dtype.kind == "f":
            bad |= ~np.isfinite(leaf[rows]).reshape(len(rows), -1).all(1)
    return rows[bad]
