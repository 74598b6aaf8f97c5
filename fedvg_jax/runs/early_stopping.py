"""When a run ends before its last round: a target is reached (`stop_at`), or D_val improves no more (`patience`).

Both are functions of the records alone, so a resumed run ends where an uninterrupted one does. `val_*` are measured on
the rows that `select` names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.config.options import stop_target
from fedvg_jax.core.types import Task, Tree, UsageError
from fedvg_jax.runs import contracts
from fedvg_jax.runs.record.history import Record, primary_metric


def reason(config: Config, records: Sequence[Record]) -> str:
    """Returns why a run ends after these records; "" where it goes on.

    >>> records = [{"round": 5 * i, "val_loss": loss, "test_loss": loss} for i, loss in enumerate([4, 2, 3, 2], 1)]
    >>> reason(Config(stop_at="val_loss 2.5"), records), reason(Config(patience=3), records)
    ('val_loss 2 reached 2.5 in round 10', '')
    >>> reason(Config(patience=2), records)
    'val_loss did not improve in 2 evaluations after round 10'
    """
    if not (config.stop_at or config.patience):
        return ""
    evaluated = [record for record in records if "test_loss" in record]
    return _reached(config, evaluated) or _exhausted(config.patience, evaluated)


def check(config: Config, task: Task, pool: Tree) -> None:
    """Raises UsageError where evaluations of a task have no metric of the name in `stop_at`."""
    wanted = stop_target(config)
    if wanted is None:
        return
    sums = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), contracts.shapes_of_sums(task, pool))
    names = [f"val_{name}" for name in task.metrics(sums)]
    if wanted[0] not in names:
        raise UsageError(f"stop_at {wanted[0]} is not measured by this task; use one of {', '.join(names)}")


def _reached(config: Config, evaluated: Sequence[Record]) -> str:
    wanted = stop_target(config)
    if wanted is None:
        return ""
    name, target = wanted
    sign = -1 if name.endswith(("loss", "error")) else 1
    for record in evaluated:
        if record.get(name) is not None and sign * record[name] >= sign * target:
            return f"{name} {record[name]:.6g} reached {target:g} in round {record['round']}"
    return ""


def _exhausted(patience: int, evaluated: Sequence[Record]) -> str:
    if not patience or not evaluated:
        return ""
    metric, sign, _ = primary_metric(evaluated[-1])
    best, best_round, waited = -math.inf, evaluated[0]["round"], 0
    for record in evaluated:
        value = record[f"val_{metric}"]
        if value is not None and sign * value > best:
            best, best_round, waited = sign * value, record["round"], 0
        elif (waited := waited + (record is not evaluated[0])) == patience:
            return f"val_{metric} did not improve in {patience} evaluations after round {best_round}"
    return ""
