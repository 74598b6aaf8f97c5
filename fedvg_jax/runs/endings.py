"""When a run ends before its last round: a target is reached, D_val improves no more, or it diverged.

`stop_at` and `patience` are functions of the records alone, so a resumed run ends where an uninterrupted one does.
`val_*` are measured on the rows that `best_on` names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.config.options import stop_target
from fedvg_jax.core.types import Variables
from fedvg_jax.runs.record.history import Record, primary_metric, quality

ABSENCES = {"diverged": "diverged", "dropped": "dropped out", "untrained": "took no step"}
"""entry of a record -> words for its clients"""

EXPLOSION = 1000.0
"""A larger cross-entropy has exploded: it gives the right class a probability of e^-1000. On digits, runs of Scaffold
that learn stay below 10, and those that explode pass 10^16 on their way to infinity, or to a model that is constant."""


def loss_limit(records: Iterable[Record], is_own_task: bool) -> float:
    """Returns the largest training loss that has not exploded: `EXPLOSION`.

    The loss of a caller's own task may have any unit: there it is so many times that of the first round, if that is
    over 1.

    Args:
        records: of a run, from its first round on.
        is_own_task: whether the task is the caller's.

    >>> records = [{"train_loss": 2.5}, {"train_loss": 9.0}]
    >>> loss_limit(records, False), loss_limit(records, True), loss_limit([{"train_loss": 1e-6}], True)
    (1000.0, 2500.0, 1000.0)
    """
    losses = (record["train_loss"] for record in records)
    first = next((abs(loss) for loss in losses if loss is not None), math.inf)
    return EXPLOSION * max(1.0, first) if is_own_task else EXPLOSION


def until_first(records: Sequence[Record], limit: float = math.inf) -> list[Record]:
    """Returns the records up to the first round in which a client or the loss diverged, and that one.

    Args:
        records: of consecutive rounds.
        limit: see `loss_limit`.

    >>> until_first([{"round": 1}, {"round": 2, "diverged": [0]}, {"round": 3}])
    [{'round': 1}, {'round': 2, 'diverged': [0]}]
    """
    is_last = ("diverged" in record or bool(_explosion(record, limit)) for record in records)
    first = next((i for i, found in enumerate(is_last) if found), len(records))
    return list(records[: first + 1])


def _explosion(record: Record, limit: float) -> str:
    """Returns how the loss of a round diverged; "" if it did not."""
    if record.get("train_loss") is not None and record["train_loss"] > limit:
        return f"the training loss {record['train_loss']:.3g} is over {limit:.4g}"
    is_evaluated = "test_loss" in record
    is_finite = is_evaluated and any(record[name] is not None for name in ("val_loss", "test_loss"))
    return "the loss of the global model is not finite" if is_evaluated and not is_finite else ""


def divergence(records: Sequence[Record], variables: Variables | None = None, limit: float = math.inf) -> str:
    """Returns the error message for the first round in which a client or the loss diverged, "" if none did.

    Args:
        records: of the last rounds.
        variables: the global model after these rounds. Before the first of them in which a client diverged it was the
            same if that round and all later ones averaged no client.
        limit: see `loss_limit`.
    """
    earlier = len(until_first(records, limit)) - 1
    record = records[earlier] if records else {}
    if "diverged" not in record:
        problem = _explosion(record, limit)
        return f"round {record['round']}: {problem}; use a smaller --lr, or --nonfinite skip" if problem else ""
    number, clients = record["round"], record["diverged"]
    is_unchanged = all(map(averaged_no_client, records[earlier:]))
    if variables is not None and is_unchanged and not is_finite(variables):
        culprit = f"the server's step of round {number - 1} was" if number > 1 else "the initial model is"
        advice = (
            "use a smaller server learning rate, or correct the algorithm's residual" if number > 1 else "correct it"
        )
        return f"round {number}: clients {clients} cannot train, because {culprit} not finite; {advice}"
    return (
        f"round {number}: clients {clients} diverged (model, loss, score, weight or probe not finite);"
        " use a smaller --lr, or --nonfinite skip to leave them out"
    )


def range_hint(pool: Any) -> str:
    """Returns the range of inputs that are too large to train on as they are; "" for others, and bytes.

    >>> import collections
    >>> range_hint(collections.namedtuple("Batch", "x")(np.array([[3.0, 1680.0]])))
    '; x is from 3 to 1680: scale it, as --normalise columns does'
    """
    x = getattr(pool, "x", None)
    if x is None or getattr(x, "dtype", np.dtype(bool)).kind != "f":
        return ""
    least, most = float(x.min()), float(x.max())
    scale = "scale it, as --normalise columns does"
    return f"; x is from {least:.4g} to {most:.4g}: {scale}" if max(-least, most) > 20 else ""


def no_client_warning(records: Sequence[Record]) -> str:
    """Returns the warning for the first round that averaged no client, "" if there is none."""
    record = next((r for r in records if averaged_no_client(r)), None)
    if record is None:
        return ""
    counts = [f"{len(record[name])} {what}" for name, what in ABSENCES.items() if name in record]
    return (
        f"round {record['round']} averaged no client ({', '.join(counts)} of {len(record['clients'])}), so the global"
        " model stays as it was"
    )


def is_finite(tree: Any) -> bool:
    """Returns whether all arrays of a pytree are finite."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def averaged_no_client(record: Record) -> bool:
    """Returns whether the record has weights and all are 0."""
    return bool(record["weights"]) and not any(record["weights"])


# --- targets


def stop_reason(config: Config, records: Sequence[Record]) -> str:
    """Returns why a run ends after these records; "" where it goes on.

    >>> records = [{"round": 5 * i, "val_loss": loss, "test_loss": loss} for i, loss in enumerate([4, 2, 3, 2], 1)]
    >>> stop_reason(Config(stop_at="val_loss 2.5"), records), stop_reason(Config(patience=3), records)
    ('val_loss 2 reached 2.5 in round 10', '')
    >>> stop_reason(Config(patience=2), records)
    'val_loss did not improve in 2 evaluations after round 10'
    """
    if not (config.stop_at or config.patience):
        return ""
    evaluated = [record for record in records if "test_loss" in record]
    return _reached(config, evaluated) or _exhausted(config.patience, evaluated)


def is_over(config: Config, records: Sequence[Record]) -> bool:
    """Returns whether a run ends after these records: it has all rounds, or a reason to stop."""
    return len(records) >= config.rounds or bool(stop_reason(config, records))


def _reached(config: Config, evaluated: Sequence[Record]) -> str:
    wanted = stop_target(config)
    if wanted is None:
        return ""
    name, sign, target = wanted
    for record in evaluated:
        if record.get(name) is not None and sign * record[name] >= sign * target:
            return f"{name} {record[name]:.6g} reached {target:g} in round {record['round']}"
    return ""


def _exhausted(patience: int, evaluated: Sequence[Record]) -> str:
    if not patience or not evaluated:
        return ""
    best, best_round, waited = -math.inf, evaluated[0]["round"], 0
    for record in evaluated:
        if (value := quality(record)) > best:
            best, best_round, waited = value, record["round"], 0
        elif (waited := waited + (record is not evaluated[0])) == patience:
            return f"val_{primary_metric(record)} did not improve in {patience} evaluations after round {best_round}"
    return ""
