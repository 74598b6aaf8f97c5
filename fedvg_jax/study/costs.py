"""What a run computes: image-gradients, seconds, and rounds to a target."""

from __future__ import annotations

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.history import Record
from fedvg_jax.study.cells import Run, Study, evaluations

ROUNDING = 1e-9
"""Relative difference to a target that is rounding: results have nine digits, and the mean of equal ones may be above
them."""


def rounds_to(study: Study, run: Run, target: float) -> int | None:
    """Returns the first evaluated round that reaches a target, up to rounding; None where none does.

    Args:
        study: where the run is from.
        run: a run folder.
        target: test accuracy in percent, or loss.
    """
    rounds, values = evaluations(study, run)
    rounding = ROUNDING * abs(target)
    reached = (
        r
        for r, v in zip(rounds, values, strict=True)
        if (v >= target - rounding if study.more_is_better else v <= target + rounding)
    )
    return next(reached, None)


def seconds(run: Run) -> float | None:
    """Returns the seconds of all rounds; None where a record has none."""
    times = [record["seconds"] for record in run.records if record["seconds"] is not None]
    return float(sum(times)) if len(times) == len(run.records) else None


def bytes_sent(run: Run) -> int | None:
    """Returns the bytes that clients received and sent in all rounds; None where an older version ran it."""
    return sum(history.bytes_sent(run.records).values()) or None


def image_gradients(run: Run) -> float | None:
    """Returns the gradients of single images that the run computed: of training and of scoring.

    Training takes one per row and local epoch. A weighting that measures gradients takes one per client of the cohort
    and row of D_val in addition; fltrust one per row, and fitted one per row and step. Server steps and Elastic's probe
    count too. Forward passes, as of val_loss, are not counted.

    Returns:
        The number; None where it cannot be derived: stragglers draw their epochs, D_val's size is not
        recorded, or the algorithm or the weighting came from Python.
    """
    config = run.config
    epochs = config.local_epochs if isinstance(config.local_epochs, int) else None
    if isinstance(config.local_epochs, str) and config.local_epochs.isdigit():
        epochs = int(config.local_epochs)
    if {"algorithm", "weighting"} & {*run.given}:
        return None
    scored = _scored_per_round(run)
    if epochs is None or scored is None:
        return None
    return float(sum(_trained(run, record, epochs) for record in run.records) + scored * len(run.records))


def _trained(run: Run, record: Record, epochs: int) -> int:
    """Returns the gradients of training images in one round."""
    config = run.config
    absent = {*record.get("dropped", ()), *record.get("untrained", ())}
    rows = [n for k, n in zip(record["clients"], record["num_samples"], strict=True) if k not in absent]
    probed = sum(_probed(config, n) for n in rows) if config.algorithm == "elastic" else 0
    return sum(_trained_by_client(config, n, epochs) for n in rows) + probed


def _trained_by_client(config: Config, num_samples: int, epochs: int) -> int:
    """Returns the gradients of training images of one client in a round.

    Under `scaffold.steps` single, its E steps are the first E minibatches of all epochs, one after the other.
    """
    if config.algorithm != "scaffold" or config.scaffold.steps != "single":
        return epochs * num_samples
    batch_size = config.batch_size
    rows = num_samples - (config.single_rows != "trained" and num_samples % batch_size == 1)
    whole, rest = divmod(epochs, max(1, -(-rows // batch_size)))
    return whole * rows + min(rest * batch_size, rows)


def _probed(config: Config, num_samples: int) -> int:
    """Returns the rows of a client's probe; under `elastic.rows` rest they are not among its samples.

    The probe has int(ratio n) of n rows. Those that are left are of several n where ratio n is no integer: the largest
    is taken.
    """
    ratio = config.elastic.ratio
    if config.elastic.rows == "all":
        return int(ratio * num_samples)
    return int(round(num_samples * ratio / (1 - ratio), 9)) if num_samples else 0


def _scored_per_round(run: Run) -> float | None:
    """Returns the gradients of validation images in a round; None where the size of D_val is not recorded."""
    config = run.config
    size = run.partition.get("validation", {}).get("samples")
    tuned = config.tuning.steps * config.batch_size
    rule, passes = config.weighting, 0
    if "fltrust" in rule:
        passes += 1
    if "fitted" in rule:
        passes += config.fedvg.fit_steps
    measures = "fedvg" in rule or "generalised" in rule
    if measures and config.fedvg.signal != "delta" and config.fedvg.norm != "delta":
        passes += cohort_size(config)
    if not passes:
        return float(tuned)
    if size is None:
        return None
    return float(tuned + passes * (size - size // 2 if config.select == "held_out" else size))
